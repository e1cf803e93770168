"""What a plan recomputes: the words of `checkpointing`, read in one place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from foretell.errors import PlanError, check_count, check_number
from foretell.units import whole_number

# Parts of a block, by Megatron's names for them.
MODULES: Final = ("core_attn", "layernorm", "mla_up_proj", "mlp", "moe", "moe_act", "shared_experts")
ALLOWED: Final = (
    "none, full, full-partitioned, full:N (N blocks at a time), selective, selective-op, a fraction of the blocks between 0 and 1, "
    f"parts of blocks joined by + ({', '.join(MODULES)}), cheapest:SHARE of what blocks keep, or budget:SHARE of a "
    "device's memory"
)
Kind = Literal["none", "blocks", "ops", "modules", "cheapest", "budget"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recomputing:
    """What is recomputed: a share of the blocks, so many at a time; ops or parts of all blocks; or what is cheapest."""

    kind: Kind
    share: float = 1.0  # of blocks; of what they keep (`cheapest`); of a device's memory that may be used (`budget`)
    blocks: int = 1  # that are recomputed together, from the first one's input
    modules: frozenset[str] = frozenset()
    partitioned: bool = False  # tensor-parallel ranks keep a part each of what blocks begin with

    @classmethod
    def parse(cls, given: str | float) -> Recomputing:
        """Read a plan's `checkpointing`."""
        if not isinstance(given, str):
            check_number("checkpointing", given, ALLOWED, PlanError, most=1.0)
            return cls(kind="blocks", share=float(given)) if given else cls(kind="none")
        if given in _NAMED:
            return _NAMED[given]
        word, colon, amount = given.partition(":")
        if word == "full" and (blocks := whole_number(amount)) is not None:
            check_count("blocks of checkpointing", blocks, PlanError)
            return cls(kind="blocks", blocks=blocks)
        if word in ("cheapest", "budget") and colon:
            check_number(f"checkpointing={word}", _number(amount), "a share between 0 and 1", PlanError, most=1.0)
            return cls(kind="cheapest" if word == "cheapest" else "budget", share=float(amount))
        if set(given.split("+")) <= set(MODULES):
            return cls(kind="modules", modules=frozenset(given.split("+")))
        raise PlanError(f"checkpointing={given!r} is not possible. It takes {ALLOWED}.")

    @property
    def least_share(self) -> float:
        """Of the blocks' forward pass, what is run again for certain."""
        return self.share if self.kind == "blocks" else 0.0


_NAMED: Final = {
    "none": Recomputing(kind="none"),
    "full": Recomputing(kind="blocks"),
    "full-partitioned": Recomputing(kind="blocks", partitioned=True),
    "selective": Recomputing(kind="modules", modules=frozenset(("core_attn",))),
    "selective-op": Recomputing(kind="ops"),
}


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")
