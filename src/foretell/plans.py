"""How a step is parallelized: a `Plan` names degrees of parallelism, schedules and what is sharded; a `PlanTemplate`
is a plan for a number of devices that is not known yet."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, Literal, get_args

from foretell.errors import PlanError, check_choice, check_count, did_you_mean
from foretell.plan_text import OPTIONAL_COUNTS, read_setting, read_stages, show_setting, show_stages
from foretell.recomputing import Recomputing

Schedule = Literal["gpipe", "1f1b", "interleaved", "zero-bubble", "zb-v", "dualpipe", "dualpipe-v"]
V_SHAPED: Final = ("zb-v", "dualpipe-v")  # two chunks per stage, the second on the way back
DataParallel = Literal["ddp", "dp"]
Sharding = Literal["torch", "deepspeed", "nanotron", "internevo"]
Offload = Literal["none", "optimizer", "parameters"]
Dispatch = Literal["all-to-all", "deepep", "deepep-fp8"]
OffloadTo = Literal["cpu", "nvme"]
_CHOICES: dict[str, tuple[Any, ...]] = {
    "zero": (0, 1, 2, 3),
    "schedule": get_args(Schedule),
    "data_parallel": get_args(DataParallel),
    "sharding": get_args(Sharding),
    "offload": get_args(Offload),
    "offload_to": get_args(OffloadTo),
    "dispatch": get_args(Dispatch),
}

DDP_BUCKET_BYTES: Final = 25 * 2**20  # what DistributedDataParallel takes where nobody says it


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How a step is parallelized: devices = dp × tp × pp × cp; tp innermost, pp outermost.

    Args:
        dp: Data-parallel replicas; `data_parallel` "dp" is one process for all, `servers` > 0 parameter servers.
        tp: Tensor-parallel ranks, with `sequence_parallel` and `overlap_tp`.
        pp: Pipeline stages, by `schedule`, `virtual_stages` and `stages` (blocks of each; None balances them).
        cp: Context-parallel ranks: keys go round a ring, or are gathered (`cp_gather`), or ranks exchange heads in groups of
            `ulysses` (cp: all of them). `ep`: ranks that experts are divided among, which divides dp × cp.
        dispatch: How rows get to experts: all-to-all, or deepep, which sends a token once to each node and rank, or
            deepep-fp8, which sends it in 8 bits. `overlap_ep`: beside another micro-batch's pass; `delay_wgrad`: beside
            gradients of weights, too.
        etp: Ranks of tp that share each expert: all of them, or with etp=1 each has experts of its own, and ep divides dp × cp × tp.
        zero: 0 to 3: what data-parallel ranks shard (3 is FSDP), within groups of `hybrid_shard`, by `sharding`.
        checkpointing: none, full, selective, selective-op, a fraction of the blocks, parts of them (core_attn+layernorm),
            or what is cheapest (budget:0.8 of a device's memory).
        grad_accumulation: Micro-steps; None: the workload's.
        bucket_bytes: Of gradients that are reduced together; None: the trainer's usual, 25 MiB after a first of 1 MiB in
            DistributedDataParallel. `overlap`: while the backward pass runs. `overlap_gather`: parameters that zero=1
            updates are gathered while the next forward pass runs.
        offload: What the host keeps: none, optimizer or parameters, in memory or on NVMe (`offload_to`).
        live_parameters: Numbers that ZeRO 3 of DeepSpeed keeps gathered; None: its usual 1e9.

    Raises:
        InputError: Degrees that do not divide each other, or an unknown choice.

    Examples:
        >>> foretell.Plan.parse("dp=4,tp=2,zero=1").devices
        8
    """

    dp: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ulysses: int = 1  # of the cp ranks, how many exchange parts of sequences for heads; the rest go round a ring
    cp_gather: bool = False  # keys and values are gathered before attention
    ep: int = 1
    etp: int | None = None  # ranks of tp that share each expert; None: all of them
    dispatch: Dispatch = (
        "all-to-all"  # how rows get to experts; deepep: a token once to each node, and once to each rank
    )
    overlap_ep: bool = False  # what experts' ranks send of one micro-batch, and another micro-batch's pass side by side
    delay_wgrad: bool = False  # gradients of weights run while experts' ranks send
    zero: int = 0
    hybrid_shard: int | None = None
    sequence_parallel: bool = False
    overlap_tp: bool = False  # products and what ranks of tp communicate for them, piece by piece side by side
    schedule: Schedule = "1f1b"
    virtual_stages: int = 1
    stages: Sequence[int] | str | None = None  # blocks per stage; None cuts where it balances
    checkpointing: str | float = "none"  # words of `recomputing.py`, or the fraction of blocks
    grad_accumulation: int | None = None
    bucket_bytes: int | None = None  # None: what the trainer takes where nobody says it
    overlap: bool = True
    overlap_gather: bool = False  # what zero=1 updates is gathered while the next forward pass runs
    servers: int = 0
    asynchronous: bool = False
    data_parallel: DataParallel = "ddp"
    sharding: Sharding = "torch"  # whose way and buffers beside what zero=1 to 3 shards
    offload: Offload = "none"  # what the host keeps: the optimizer's state and its work, or the parameters too
    offload_to: OffloadTo = "cpu"  # where it keeps them
    live_parameters: int | None = None  # that DeepSpeed's ZeRO 3 keeps gathered; None: its usual 1e9

    def __post_init__(self) -> None:
        for name in ("dp", "tp", "pp", "cp", "ulysses", "ep", "virtual_stages"):
            check_count(name, getattr(self, name), PlanError)
        for name in OPTIONAL_COUNTS:
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name), PlanError)
        for name, allowed in _CHOICES.items():
            check_choice(name, getattr(self, name), allowed, PlanError)
        Recomputing.parse(self.checkpointing)
        check_count("servers", self.servers, PlanError, least=0)
        for name in ("sequence_parallel", "cp_gather", "overlap_tp", "overlap_ep", "delay_wgrad", "overlap", "overlap_gather",
                     "asynchronous"):  # fmt: skip
            check_choice(name, getattr(self, name), (True, False), PlanError)
        if self.schedule in V_SHAPED and self.virtual_stages == 1:
            object.__setattr__(self, "virtual_stages", 2)
        if self.stages is not None:
            object.__setattr__(self, "stages", read_stages(self.stages))
            self._check_stages()
        if self.live_parameters is not None and (self.zero, self.sharding) != (3, "deepspeed"):
            raise PlanError(
                f"live_parameters={self.live_parameters} are of zero=3,sharding=deepspeed, but this plan is zero={self.zero},"
                f"sharding={self.sharding}. Leave live_parameters out."
            )
        self._check_experts()

    def _check_experts(self) -> None:
        if self.etp not in (None, 1, self.tp):
            raise PlanError(
                f"etp={self.etp} must be 1 or tp={self.tp}: each rank of tp has experts of its own, or all of them share every expert. "
                "Choose one of the two."
            )
        if not self.splits_experts and not self.sequence_parallel:
            raise PlanError(
                f"etp=1 lets each of tp={self.tp} ranks route tokens of its own, which needs sequence_parallel=true. "
                "Set it, or leave etp out."
            )
        if self.dispatch != "all-to-all" and self.ep == 1:
            raise PlanError(
                f"dispatch={self.dispatch} sends rows to experts on other ranks, but ep=1 has none. Set ep=2 or more, "
                "or leave dispatch out."
            )
        among, names = self.dp * self.cp, f"dp × cp = {self.dp} × {self.cp}"
        if not self.splits_experts:
            among, names = among * self.tp, f"dp × cp × tp = {self.dp} × {self.cp} × {self.tp}"
        if among % self.ep:
            raise PlanError(f"ep={self.ep} must divide {names} = {among}. Choose an ep that divides it, or change dp.")

    @property
    def directions(self) -> int:
        """In which micro-batches go through a pipeline, each with a copy of the model."""
        return 2 if self.schedule == "dualpipe" else 1

    @property
    def takes_turns(self) -> bool:
        """Whether passes of micro-batches are scheduled, on stages or side by side on one."""
        return self.pp > 1 or self.overlap_ep

    @property
    def splits_experts(self) -> bool:
        """Whether ranks of tp share every expert, as they share other layers."""
        return self.tp == 1 or self.etp != 1

    def _check_stages(self) -> None:
        assert self.stages is not None
        if len(self.stages) != (chunks := self.pp * self.virtual_stages):
            raise PlanError(
                f"stages={show_stages(self.stages)} cuts {len(self.stages)} stages, but pp × virtual_stages = {self.pp} × "
                f"{self.virtual_stages} = {chunks}. Give blocks for each of the {chunks}, or leave stages out."
            )
        if self.pp == 1:
            raise PlanError(f"stages={show_stages(self.stages)} cuts a pipeline, but pp=1 is none. Leave stages out.")

    @property
    def devices(self) -> int:
        return self.dp * self.tp * self.pp * self.cp

    def check_devices(self, devices: int) -> None:
        if self.devices != devices:
            raise PlanError(
                f"plan {self} needs dp × tp × pp × cp = {self.dp} × {self.tp} × {self.pp} × {self.cp} = {self.devices} "
                f"devices, but the cluster has {devices}. Change the plan or the cluster so that they agree."
            )

    @staticmethod
    @lru_cache(maxsize=1024)
    def parse(text: str) -> Plan:
        """Read `dp=4,tp=2,zero=1`."""
        kinds = {f.name: f.default for f in dataclasses.fields(Plan)}
        values: dict[str, Any] = {}
        for part in filter(None, (p.strip() for p in text.split(","))):
            name, equals, value = part.partition("=")
            if name not in kinds or not equals:
                raise PlanError(
                    f"plan {text!r}: {part!r} is not a setting. {did_you_mean(name, kinds)}Write it like 'dp=4,tp=2,zero=1'; "
                    f"settings: {', '.join(kinds)}."
                )
            values[name] = read_setting(name, value, kinds[name])
        return Plan(**values)

    def __str__(self) -> str:
        """The shortest text that `parse` reads back: dp, then whatever is not the default."""
        shown = [f"dp={self.dp}"]
        for f in dataclasses.fields(self)[1:]:
            value = getattr(self, f.name)
            if value != f.default:
                shown.append(f"{f.name}={show_setting(value)}")
        return ",".join(shown)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanTemplate:
    """The plan of a training script or of a trainer's configuration, on as many devices as it will run on."""

    source: str  # the file that asks for it
    by: Literal["script", "configuration"]
    settings: Mapping[str, Any] = field(default_factory=dict)  # fields of Plan, but for dp
    copies: int | Literal["nodes"] = 1  # of a sharded model; "nodes": one on each node
    global_batch: int | None = None  # samples of a step of all replicas; micro-steps follow from it
    batch: int = 1  # samples of a micro-step
    devices: int | None = None  # that the file is written for

    def __post_init__(self) -> None:
        known = [f.name for f in dataclasses.fields(Plan) if f.name != "dp"]
        if unknown := [name for name in self.settings if name not in known]:
            raise PlanError(f"{self.source}: a plan has no {', '.join(unknown)}. Settings: {', '.join(known)}.")
        for name, count in (("batch", self.batch), ("global_batch", self.global_batch), ("devices", self.devices)):
            if count is not None:
                check_count(f"{name} of {self.source}", count, PlanError)
        if self.copies != "nodes":
            check_count(f"copies of {self.source}", self.copies, PlanError)

    @property
    def replica(self) -> Plan:
        """One model's share of devices, without data parallelism."""
        return Plan(**{name: self.settings[name] for name in ("tp", "pp", "cp") if name in self.settings})

    def plan_for(self, devices: int, nodes: int = 1) -> Plan:
        """The plan on so many devices: data parallelism takes what tensor, pipeline and context parallelism leave."""
        shape = self.replica
        if devices % shape.devices:
            raise PlanError(
                f"{self.source} has tp × pp × cp = {shape.tp} × {shape.pp} × {shape.cp} = {shape.devices}, which does not divide "
                f"{devices} devices. Choose a cluster with a multiple of {shape.devices} devices."
            )
        dp = devices // shape.devices
        made = dict(self.settings, dp=dp)
        if (copies := nodes if self.copies == "nodes" else self.copies) > 1:
            if dp * shape.cp % copies:
                raise PlanError(
                    f"{self.source} keeps {copies} copies of a sharded model, which does not divide the {dp * shape.cp} "
                    f"data-parallel ranks. Choose another number of devices."
                )
            made["hybrid_shard"] = dp * shape.cp // copies
        if self.global_batch is not None:
            if self.global_batch % (self.batch * dp):
                raise PlanError(
                    f"{self.source} has {self.global_batch} samples in a step, which {dp} replicas with {self.batch} samples "
                    "at a time do not divide. Change the cluster, or --set batch=…"
                )
            made["grad_accumulation"] = self.global_batch // (self.batch * dp)
        return Plan(**made)

    def to_dict(self) -> dict[str, Any]:
        """For a graph's file; `from_dict` reads it back, and checks it."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, written: Mapping[str, Any]) -> PlanTemplate:
        check_choice("by", written.get("by"), ("script", "configuration"), PlanError)
        names = {f.name for f in dataclasses.fields(cls)}
        if written.keys() != names or not isinstance(written["settings"], dict):
            raise PlanError(f"a plan's template has {', '.join(sorted(names))}, got {', '.join(map(str, written))}.")
        return cls(**written)
