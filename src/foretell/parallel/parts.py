"""Parts of a block that can be recomputed by themselves, under the names that Megatron has for them.

They are found by their operators and by which modules hold them, never by the names of modules. A part whose results
are dropped too, like a norm before products, is run again where its readers' gradients need them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from foretell.graph import Op
from foretell.graph.modules import prefixes
from foretell.graph.operators import operator_of
from foretell.parallel.attention import WEIGHING, attention_unit, attentions
from foretell.parallel.blocks import Span
from foretell.parallel.flow import Flow
from foretell.parallel.recompute import Unit

_GROUPED: Final = "grouped"  # kind of the products of experts
_ROOT: Final = "aten.rsqrt"  # of a norm that is written out


def part_units(flow: Flow, path: str, span: Span, modules: frozenset[str]) -> Iterator[Unit]:
    """The units of these parts in one block; none is recomputed twice."""
    block, taken = _Block(flow, path, span), set[int]()
    for name, find in _FINDERS.items():
        for unit in find(block) if name in modules else ():
            free = [p for p in range(unit.first, unit.last + 1) if p not in taken]
            if free:
                first = next(p for p in reversed(free) if p - 1 not in free)
                yield Unit(first=first, last=free[-1], kept=unit.kept, discards=unit.discards)
                taken.update(range(first, free[-1] + 1))


@dataclass(frozen=True)
class _Block:
    flow: Flow
    path: str
    span: Span

    def op(self, position: int) -> Op:
        return self.flow.graph.ops[position]

    def under(self, position: int, module: str) -> bool:
        return bool(module) and f"{self.op(position).module}.".startswith(f"{module}.")

    def run(self, position: int, module: str) -> Span:
        """The ops around one that are in a module, without a gap."""
        first = last = position
        while first > self.span.first and self.under(first - 1, module):
            first -= 1
        while last < self.span.last and self.under(last + 1, module):
            last += 1
        return Span(first, last)

    @cached_property
    def positions(self) -> range:
        return range(self.span.first, self.span.last + 1)

    @cached_property
    def products(self) -> list[int]:
        """Products with weights."""
        named = [(p, self.op(p).signature.name) for p in self.positions]
        return [p for p, name in named if operator_of(name).family == "matmul" and name not in WEIGHING]

    @cached_property
    def attentions(self) -> list[int]:
        return list(attentions(self.flow, self.positions))

    @cached_property
    def attention_scope(self) -> str:
        """The largest module around an attention that has not all products of the block."""
        inside = [
            path for p in self.attentions[:1] for path in prefixes(self.op(p).module) if len(path) > len(self.path)
        ]
        return next((path for path in inside if not all(self.under(p, path) for p in self.products)), "")

    @cached_property
    def others(self) -> list[int]:
        """Products that are not an attention's."""
        if not self.attentions:
            return self.products
        return [p for p in self.products if not self.under(p, self.attention_scope)] if self.attention_scope else []

    @cached_property
    def grouped(self) -> list[int]:
        return [p for p in self.others if operator_of(self.op(p).signature.name).kind == _GROUPED]

    @cached_property
    def norms(self) -> list[Span]:
        """One op each, or the ops of a module that writes its norm out."""
        found = []
        for p in self.positions:
            name, module = self.op(p).signature.name, self.op(p).module
            if operator_of(name).family == "norm":
                found.append(Span(p, p))
            elif name == _ROOT and module != self.path:
                found.append(self.run(p, module))
        return found

    def around(self, products: list[int]) -> Span:
        """From the first to the last of these, with the rest of the modules that hold them."""
        ends = []
        for p in (products[0], products[-1]):
            holder = self.op(p).module.rpartition(".")[0]
            ends.append(self.run(p, holder) if len(holder) > len(self.path) else Span(p, p))
        return Span(ends[0].first, ends[1].last)


def _mixture(block: _Block) -> Iterator[Unit]:
    if block.grouped:
        first, last = block.around(block.others)
        yield Unit(first=first, last=last)


def _dense(block: _Block) -> Iterator[Unit]:
    if block.others and not block.grouped:
        first, last = block.around(block.others)
        yield Unit(first=first, last=last)


def _shared_experts(block: _Block) -> Iterator[Unit]:
    """Of a mixture, modules with several products of all rows."""
    if not block.grouped:
        return
    own = [p for p in block.others if p not in block.grouped]
    for holder in dict.fromkeys(block.op(p).module.rpartition(".")[0] for p in own):
        inside = [p for p in own if block.op(p).module.rpartition(".")[0] == holder]
        if len(inside) > 1 and not any(block.under(p, holder) for p in block.grouped):
            first, last = block.around(inside)
            yield Unit(first=first, last=last)


def _activation_of_experts(block: _Block) -> Iterator[Unit]:
    """What lies between the last two products of experts; its result is dropped too."""
    if len(block.grouped) > 1:
        before, after = block.grouped[-2:]
        if after - before > 1:
            yield Unit(first=before + 1, last=after - 1, discards=True)


def _up_projections(block: _Block) -> Iterator[Unit]:
    """Of latents: products that read a norm inside the attention, and all up to the attention, norms and others apart."""
    inside = [n for n in block.norms if block.under(n.first, block.attention_scope)]
    normed = block.flow.made_by(p for n in inside for p in range(n.first, n.last + 1))
    tensors = block.flow.graph.tensors
    mine = [p for p in block.products if block.under(p, block.attention_scope)]
    up = [p for p in mine if any(tensors[t].storage in normed for t in block.op(p).inputs)]
    for attention in block.attentions[:1]:
        if any(p < attention for p in up):
            first = min(up)
            kept = {p for p in mine if p not in up} | {p for n in inside for p in range(n.first, n.last + 1)}
            yield Unit(
                first=first, last=attention - 1, kept=frozenset(p for p in kept if first < p < attention), discards=True
            )


def _norms(block: _Block) -> Iterator[Unit]:
    """Those that are no attention's own, with what they make."""
    for norm in block.norms:
        if not any(block.under(norm.first, block.op(p).module) for p in block.attentions):
            yield Unit(first=norm.first, last=norm.last, discards=True)


def _core_attention(block: _Block) -> Iterator[Unit]:
    for position in block.attentions:
        yield attention_unit(block.flow, position)


# Larger parts come first: what lies inside them is recomputed with them.
_FINDERS: Final[dict[str, Callable[[_Block], Iterator[Unit]]]] = {
    "moe": _mixture,
    "mlp": _dense,
    "shared_experts": _shared_experts,
    "moe_act": _activation_of_experts,
    "mla_up_proj": _up_projections,
    "layernorm": _norms,
    "core_attn": _core_attention,
}
