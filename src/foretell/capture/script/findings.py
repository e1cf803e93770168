"""What a script was found to ask for while it ran: typed, for the plan, the precision and the caveats of its graph."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from torch.optim import Optimizer

from foretell.capture.script.wrappers import Sharded
from foretell.capture.script.wrappers.data_parallel import DataParallel
from foretell.capture.script.wrappers.ddp import Ddp
from foretell.capture.script.wrappers.deepspeed import DeepSpeed
from foretell.capture.script.wrappers.fsdp import Fsdp
from foretell.capture.script.wrappers.fully_shard import FullyShard
from foretell.graph import Caveat
from foretell.plans import PlanTemplate
from foretell.precision import Precision
from foretell.sources.master_weights import Copies
from foretell.sources.scripts import Script


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What a script asks for beyond the ops that it runs."""

    world: int | None = None  # ranks of its process group
    wrapper: Ddp | Fsdp | FullyShard | DataParallel | DeepSpeed | None = None  # the last that it made
    mixed: Precision | None = None  # of a policy or a configuration
    copies: tuple[Copies, ...] = ()  # of parameters, that sharded modules compute with
    optimizer: Optimizer | None = None  # that DeepSpeed's took the place of, so it updates nothing
    compiled: bool = False
    sync_batch_norm: bool = False
    collectives: tuple[str, ...] = ()  # that the script calls itself, in its step
    kernels: tuple[str, ...] = ()  # of packages that need a GPU, run as torch's own
    stand_ins: tuple[str, ...] = ()  # for data and checkpoints
    unmodelled: tuple[Caveat, ...] = ()  # what keywords of wrappers change and the plan cannot have
    assumptions: tuple[str, ...] = ()  # on values that only a run would know

    def plan(self, script: Script) -> PlanTemplate:
        """The plan that the wrapper asks for, on as many devices as it will run on."""
        return PlanTemplate(
            source=script.path,
            by="script",
            settings=dict(self.wrapper.settings) if self.wrapper is not None else {},
            copies=self.wrapper.copies if isinstance(self.wrapper, Sharded) else 1,
            devices=self.world or script.processes or 1,
        )

    def precision(self, computed: Precision) -> Precision:
        """What the step keeps, computes and sends its numbers in; `computed` is what torch was set to compute in."""
        if self.mixed is not None:
            changes = self.mixed.casts or self.mixed.master is not None
            return self.mixed if changes else replace(computed, name="", reduce=self.mixed.reduce)
        hooked = self.wrapper.reduce if isinstance(self.wrapper, Ddp) else None
        return computed if hooked in (None, computed.reduce) else replace(computed, name="", reduce=hooked)

    def caveats(self, script: Script) -> Iterator[Caveat]:
        if self.compiled:
            yield Caveat(
                "compile-not-modelled", "torch.compile: fused kernels are not modelled yet; this is the eager step."
            )
        if (script.processes or 1) > 1 and self.wrapper is None:
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
        if self.stand_ins:
            yield Caveat("fake-data", f"Stood in for, since they are not on this machine: {', '.join(self.stand_ins)}.")
        if self.kernels:
            yield Caveat(
                "kernels-stood-in",
                f"Kernels that cannot run here, as torch's own of the same kind: {', '.join(self.kernels)}.",
            )
        for assumption in self.assumptions:
            yield Caveat("assumed-values", f"The step depends on values that only a run would know: {assumption}.")
