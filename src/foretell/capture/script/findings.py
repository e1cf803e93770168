"""What a script was found to ask for while it ran: typed, for the plan, the precision and the caveats of its graph."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from torch.optim import Optimizer

from foretell.capture.compiled.caveats import caveats_of
from foretell.capture.compiled.wishes import Compiled
from foretell.graph import Caveat
from foretell.graph.notes import Note
from foretell.plans import PlanTemplate
from foretell.precision import Float, Precision, Recipe
from foretell.sources.master_weights import Copies
from foretell.sources.scripts import Script

_SHOWN: Final = 12  # things in a caveat
_LETTERS: Final = 300  # of each


@dataclass(frozen=True, slots=True, kw_only=True)
class Ddp:
    """What a script's DistributedDataParallel does."""

    bucket_bytes: int | None  # None: not given
    reduce: Float | None = None  # what a hook sends gradients in; None: as they are

    @property
    def settings(self) -> Mapping[str, Any]:
        """Fields of a plan."""
        return {"zero": 0} | ({} if self.bucket_bytes is None else {"bucket_bytes": self.bucket_bytes})


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharded:
    """A model whose parameters, gradients and state are sharded."""

    zero: int
    shards: int | Literal["node"] | None = None  # ranks that share a copy; None: all
    offload: bool = False  # the host keeps parameters and state, and updates them

    @property
    def settings(self) -> Mapping[str, Any]:
        """Fields of a plan."""
        found: dict[str, Any] = {"zero": self.zero}
        if isinstance(self.shards, int):
            found["hybrid_shard"] = self.shards
        if self.offload:  # parameters are fetched where they are gathered, or stay on the device
            found["offload"] = "parameters" if self.zero == 3 else "optimizer"
        return found

    @property
    def copies(self) -> int | Literal["nodes"]:
        return "nodes" if self.shards == "node" else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Fsdp(Sharded):
    """What a script's FullyShardedDataParallel does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FullyShard(Sharded):
    """What a script's `fully_shard` does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataParallel:
    """What a script's DataParallel does."""

    replicas: int = 1  # that the batch is divided among

    @property
    def settings(self) -> Mapping[str, Any]:
        """Fields of a plan."""
        return {"data_parallel": "dp"}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepSpeed:
    """What a script's DeepSpeed engine does: its configuration's plan."""

    settings: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class StandIn:
    """Something that is not on this machine, and what it was taken to be."""

    what: str  # such as "pictures of data/train"
    assumed: str = ""  # such as "1,000 classes"
    decides_size: bool = False  # the model's size rests on what was assumed

    def __str__(self) -> str:
        return f"{self.what} ({self.assumed})" if self.assumed else self.what


@dataclass(frozen=True, slots=True, kw_only=True)
class Aside:
    """Forward passes, or batches, of a script that are no part of its step and were cut short."""

    what: Literal["evaluation", "rollouts", "preparation"]
    passes: int
    inputs: tuple[int, ...] = ()  # what most of them are given

    @property
    def caveat(self) -> Caveat:
        if self.what == "evaluation":
            return Caveat(
                "evaluation-not-in-step",
                f"Evaluation is not in the step: {self.passes:,} forward passes before it were cut short.",
            )
        if self.what == "rollouts":
            shape = f" of {'×'.join(map(str, self.inputs))}" if self.inputs else ""
            return Caveat(
                "rollouts-not-in-step",
                f"The step is one update. What the script does between rounds of updates is not in it: {self.passes:,} forward "
                f"passes{shape} without gradients, and what is computed from them.",
            )
        return Caveat(
            "preparation-cut-short",
            f"A loop over the data before the first step was cut short by {self.passes:,} batches: what the script computes "
            "from them is of the others alone.",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What a script asks for beyond the ops that it runs."""

    world: int | None = None  # ranks of its process group
    wrapper: Ddp | Fsdp | FullyShard | DataParallel | DeepSpeed | None = None  # the last that it made
    degrees: Mapping[str, Any] = field(default_factory=dict)  # fields of a plan: ranks that share layers or sequences
    mixed: Precision | None = None  # of a policy or a configuration
    fp8: Recipe | None = None  # how Transformer Engine scales the factors of products
    copies: tuple[Copies, ...] = ()  # of parameters, that sharded modules compute with
    optimizer: Optimizer | None = None  # that DeepSpeed's took the place of, so it updates nothing
    compiled: Compiled | None = None
    sync_batch_norm: bool = False
    collectives: tuple[str, ...] = ()  # that the script calls itself, in its step
    kernels: tuple[str, ...] = ()  # of packages that need a GPU, run as torch's own
    stand_ins: tuple[StandIn, ...] = ()  # for data and checkpoints
    unmodelled: tuple[Caveat, ...] = ()  # what keywords of wrappers change and the plan cannot have
    assumptions: tuple[str, ...] = ()  # on values that only a run would know
    asides: tuple[Aside, ...] = ()  # what is no part of the step

    @property
    def replicas(self) -> int | None:
        """Ranks that have each their own batch."""
        shared = [self.degrees.get(name, 1) for name in ("tp", "cp", "pp")]
        return None if self.world is None else self.world // math.prod(shared)

    def plan(self, script: Script) -> PlanTemplate:
        """The plan that the wrapper asks for, on as many devices as it will run on."""
        return PlanTemplate(
            source=script.path,
            by="script",
            settings={**(self.wrapper.settings if self.wrapper is not None else {}), **self.degrees},
            copies=self.wrapper.copies if isinstance(self.wrapper, Sharded) else 1,
            devices=self.world or script.processes or 1,
        )

    def precision(self, computed: Precision) -> Precision:
        """What the step keeps, computes and sends its numbers in; `computed` is what torch was set to compute in."""
        found = self._without_fp8(computed)
        return replace(found, name="", fp8=self.fp8) if self.fp8 is not None and found.is_half else found

    def _without_fp8(self, computed: Precision) -> Precision:
        if self.mixed is not None:
            changes = self.mixed.casts or self.mixed.master is not None
            return self.mixed if changes else replace(computed, name="", reduce=self.mixed.reduce)
        hooked = self.wrapper.reduce if isinstance(self.wrapper, Ddp) else None
        return computed if hooked in (None, computed.reduce) else replace(computed, name="", reduce=hooked)

    def notes(self) -> Iterator[Note]:
        """What was taken to be so, one by one."""
        if self.wrapper is not None or self.degrees:
            name = "what the script wraps its model in" if self.wrapper is None else type(self.wrapper).__name__
            settings = {**(self.wrapper.settings if self.wrapper is not None else {}), **self.degrees}
            taken = ", ".join(f"{key}={value}" for key, value in settings.items()) or "data parallelism"
            yield Note.brief("plan", name, taken)
        for stand_in in self.stand_ins:
            yield Note.brief("stand-in", stand_in.what, stand_in.assumed, decides_size=stand_in.decides_size)
        for kernel in self.kernels:
            yield Note.brief("kernel", kernel, "torch's own of the same kind")
        for left in self.compiled.left if self.compiled is not None else ():
            yield Note.brief("left-out", f"torch.compile of {left.what}", "the eager step")
        for aside in self.asides:
            yield Note.brief("cut-short", aside.caveat.text)
        for name in self.collectives:
            yield Note.brief("left-out", f"{name}, which the script calls itself", "no time")
        for caveat in self.unmodelled:
            yield Note.brief("left-out", caveat.text)
        for assumption in self.assumptions:
            yield Note.brief("value", assumption)

    def caveats(self, script: Script) -> Iterator[Caveat]:
        if self.compiled is not None:
            yield from caveats_of(self.compiled)
        if (script.processes or 1) > 1 and self.wrapper is None and not self.degrees:
            yield Caveat(
                "script-on-one-device",
                "The script does not distribute its model: run as it is, each process would train alone. This is the step "
                "with its gradients averaged as DistributedDataParallel does.",
            )
        if self.sync_batch_norm:
            yield Caveat(
                "sync-batch-norm", "SyncBatchNorm: what the ranks exchange in each of them is not in the step."
            )
        if self.collectives:
            yield Caveat(
                "collectives-not-modelled",
                f"Collectives that the script calls itself are not in the step: {', '.join(self.collectives)}.",
            )
        yield from self.unmodelled
        yield from (aside.caveat for aside in self.asides)
        if self.stand_ins:
            names = _few(self.stand_ins)
            yield Caveat("fake-data", f"Stood in for, since they are not on this machine: {names}.")
        if sizes := [str(stand_in) for stand_in in self.stand_ins if stand_in.decides_size]:
            yield Caveat(
                "assumed-size",
                f"The model's size rests on what is not on this machine and was assumed: {_few(sizes)}.",
            )
        if self.kernels:
            yield Caveat(
                "kernels-stood-in",
                f"Kernels that cannot run here, as torch's own of the same kind: {', '.join(self.kernels)}.",
            )
        for assumption in self.assumptions:
            yield Caveat("assumed-values", f"The step depends on values that only a run would know: {assumption}.")


def _few(things: Sequence[object]) -> str:
    """So many that a reader reads them; a report of what was assumed has all."""
    shown = [str(thing)[:_LETTERS] for thing in things[:_SHOWN]]
    more = len(things) - len(shown)
    return ", ".join(shown) + (f" and {more:,} more, which --explain lists" if more else "")
