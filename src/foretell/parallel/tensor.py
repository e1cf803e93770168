"""Tensor parallelism, found in the graph: pairs of matrix products between which everything can work on parts.

A product whose weight is cut by columns leaves each rank some features; if all that follows works on them (heads of an
attention, units of an activation) up to products that sum over them, those are cut by rows, and one sum over the ranks
closes the region. Embedding tables are cut by rows of the vocabulary, and the product before the loss by its classes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Set
from dataclasses import replace

from foretell.errors import NotModelled, PlanError
from foretell.graph import Graph, Op
from foretell.parallel.parameters import parameters
from foretell.parallel.sharding.cut import PARTIAL, CannotShard, Cut, Indivisible, Placement, Split, split_of
from foretell.parallel.sharding.propagate import GROUPED, PRODUCTS, Policy, Propagation
from foretell.parallel.weight_gradients import behind_sums
from foretell.plans import Plan
from foretell.program import Collective, Group, Role

_JOINED = 2  # groups of products that may join another: keys and values
_OVER_FEATURES = frozenset(("aten.mean", "aten.sum", "aten.var", "aten.var_mean"))  # norms written out
_STRETCHES = (3, 2)  # that a weight may hold: queries, keys and values, or gate and up, one after another


def tensor_parallel(role: Role, plan: Plan) -> Role:
    """The role of one of `tp` ranks that share every matrix product."""
    if plan.tp == 1:
        return role
    graph = role.graph
    group = Group(size=plan.tp, stride=1, count=plan.devices // plan.tp)
    search = _Search(graph, plan.tp, PRODUCTS if plan.splits_experts else PRODUCTS - {GROUPED})
    cuts, tables = search.found()
    if search.indivisible:
        module, why = next(iter(search.indivisible.items()))
        raise PlanError(
            f"tp={plan.tp} cannot share {module} of {graph.name!r}: {why}. "
            "Choose a tp that divides the heads and widths of the model, or divide the step by dp, zero or pp."
        )
    if not cuts:
        raise NotModelled(
            f"tp={plan.tp} finds no pair of matrix products in {graph.name!r} with nothing between them that needs whole "
            "rows. Divide the step by dp, zero or pp."
        )
    # Megatron's layers keep a rank's own rows and gather them again; torch's own keep what they gathered.
    policy = Policy(
        group=group, lane="tp", scatters_tokens=plan.sequence_parallel, gathers_again=graph.calls.has_engine,
        whole_experts=not plan.splits_experts,
    )  # fmt: skip
    sharding = Propagation(graph, policy, cuts, tables)
    try:
        sharded = sharding.sharded_step()
    except CannotShard as reason:
        raise NotModelled(
            f"tp={plan.tp} cannot keep its parts apart through {graph.name!r}: {reason}. Choose another tp."
        ) from None
    overlaps = plan.overlap_tp
    own = [_overlapping_product(c, graph) if overlaps and c.lane == "tp" else c for c in sharding.collectives]
    ordered = sorted(own, key=lambda c: (c.starts_after, c.waited_for_by))
    before = [_of_own_heads(c, sharding) for c in role.collectives]
    shared = replace(role, graph=sharded, collectives=(*before, *ordered))
    return behind_sums(shared, policy.lane) if graph.calls.has_engine else shared


def _overlapping_product(collective: Collective, graph: Graph) -> Collective:
    """As asynchronous tensor parallelism has it: a product starts on the pieces that came first, and what it makes is sent
    piece by piece. All but the first and last of them run side by side."""
    before, after = collective.starts_after, collective.waited_for_by
    if collective.kind == "all-gather":
        while after < len(graph.ops) and _is_view(graph, after):
            after += 1
        if after < len(graph.ops) and graph.ops[after].signature.name in PRODUCTS:
            return replace(collective, waited_for_by=after + 1)
    else:
        while before > 0 and _is_view(graph, before):
            before -= 1
        if graph.ops[before].signature.name in PRODUCTS:
            return replace(collective, starts_after=before - 1)
    return collective


def _is_view(graph: Graph, position: int) -> bool:
    op = graph.ops[position]
    read = {graph.tensors[t].storage for t in op.inputs}
    return bool(op.outputs) and not op.signature.mutates and all(graph.tensors[t].storage in read for t in op.outputs)


def _of_own_heads(collective: Collective, sharding: Propagation) -> Collective:
    """Keys and values that go round a ring of ranks: each sends those of its own heads."""
    op = sharding.graph.ops[collective.starts_after + 1]
    shared = any(sharding.cut(t) for t in op.inputs)
    return replace(collective, nbytes=collective.nbytes // sharding.ways) if shared else collective


def _operands(op: Op) -> tuple[int, int]:
    """The rows and the matrix of a product: a bias comes before them, the ends of groups after."""
    return (op.inputs[0], op.inputs[1]) if op.signature.name == GROUPED else (op.inputs[-2], op.inputs[-1])


class _Search:
    def __init__(self, graph: Graph, ways: int, products: Set[str]) -> None:
        self.graph, self.ways, self.products = graph, ways, products
        self.parameters = {p.storage: p for p in parameters(graph)}
        self.forward = next((i for i, op in enumerate(graph.ops) if op.phase != "forward"), len(graph.ops))
        self.origin = dict(self._origins())
        self.last_use: dict[int, int] = {}
        for position, op in enumerate(graph.ops[: self.forward]):
            for t in op.inputs:
                self.last_use[graph.tensors[t].storage] = position
        self.before_the_loss = frozenset(self._before_the_loss())
        self.indivisible: dict[str, str] = {}  # module → the arithmetic
        self._stuck = 0  # where the last region could not go on
        self._heads: int | None = None  # which the ranks did not divide there
        self.sharding = Propagation(graph, Policy(group=Group(size=ways), lane=""), {})

    def found(self) -> tuple[dict[int, Split], set[str]]:
        """Cuts of parameters, and modules whose table is cut."""
        cuts: dict[int, Split] = {}
        groups = list(self._products_by_input().values())
        for positions in groups:
            if any(self._weight(p) in cuts for p in positions):
                continue  # a row of a region found before
            region = self._try_region(positions, 1) or self._try_copies(positions)
            region = region or next(filter(None, (self._try_region(positions, s) for s in _STRETCHES)), None)
            if region is None:
                later = [g for g in groups if g[0] > positions[0] and not any(self._weight(p) in cuts for p in g)]
                region = self._try_together(positions, later)
            if region is not None:
                cuts.update(region)
                self.indivisible.pop(self.graph.ops[positions[0]].module, None)
        tables = set(self._tables(cuts)) if cuts else set()
        return cuts, tables

    def _try_copies(self, positions: list[int]) -> dict[int, Split] | None:
        """Where heads of keys and values are fewer than ranks, several ranks have the same one."""
        if self._heads is None or self.ways % self._heads:
            return None
        widths = {p: self.graph.ops[p].signature.outputs[0].shape[-1] for p in positions}
        narrow = frozenset(p for p, width in widths.items() if width < max(widths.values()))
        return self._try_region(positions, 1, narrow, self.ways // self._heads) if narrow else None

    def _try_together(self, positions: list[int], later: list[list[int]]) -> dict[int, Split] | None:
        """With products of other rows, whose parts meet: queries of a decoder and keys of its encoder, or of latents."""
        for _ in range(_JOINED):
            between = [g for g in later if g[0] < self._stuck and g[0] not in positions]
            if not between:
                return None
            positions = positions + between[-1]  # the nearest to where it met whole rows
            if (region := self._try_region(positions, 1)) is not None:
                return region
        return None

    def _origins(self) -> Iterator[tuple[int, int]]:
        """Storages that hold a parameter or a cast of one."""
        known = dict.fromkeys(self.parameters)
        origin = {s: s for s in known}
        for op in self.graph.ops[: self.forward]:
            if len(op.inputs) == 1 and op.outputs:
                source = origin.get(self.graph.tensors[op.inputs[0]].storage)
                if source is not None:
                    origin.setdefault(self.graph.tensors[op.outputs[0]].storage, source)
        yield from origin.items()

    def _weight(self, position: int) -> int | None:
        """The parameter that a product multiplies with."""
        return self.origin.get(self.graph.tensors[_operands(self.graph.ops[position])[1]].storage)

    def _products_by_input(self) -> dict[int, list[int]]:
        """Positions of products by what they read; autocast gives each a cast of its own."""
        found = defaultdict(list)
        source: dict[int, int] = {}
        for position, op in enumerate(self.graph.ops[: self.forward]):
            if op.signature.name == "aten._to_copy" and op.outputs:
                read = self.graph.tensors[op.inputs[0]].storage
                source[self.graph.tensors[op.outputs[0]].storage] = source.get(read, read)
            elif op.signature.name in self.products and self._weight(position) is not None:
                read = self.graph.tensors[_operands(op)[0]].storage
                found[source.get(read, read)].append(position)
        return found

    def _try_region(
        self, positions: list[int], stretches: int, narrow: frozenset[int] = frozenset(), copies: int = 1
    ) -> dict[int, Split] | None:
        """Cut products that read the same by columns, and follow the parts until they are added up.

        Of `narrow` products several ranks have the same columns.
        """
        cuts: dict[int, Split] = {}
        self.sharding.restart({})
        self._heads, self._stuck = None, 0
        try:
            for position in positions:
                op = self.graph.ops[position]
                uneven = position in self.before_the_loss
                weight = _operands(op)[1]
                columns = len(self.graph.tensors[weight].layout.shape) - 1
                same = copies if position in narrow else 1
                self._cut(weight, Cut(columns, stretches, uneven=uneven, copies=same), cuts)
                for bias in op.inputs[:-2] if op.signature.name != GROUPED else ():
                    self._cut(bias, Cut(0, stretches, uneven=uneven, copies=same), cuts)
            closed = self._follow(positions[0], cuts)
        except Indivisible as reason:
            self._heads = reason.size
            # Several weights are not one that holds them all, nor is one whose columns do not divide so.
            if stretches == 1 or (len(positions) == 1 and self._stuck):
                self.indivisible.setdefault(self.graph.ops[positions[0]].module, str(reason))
            return None
        except CannotShard:
            return None
        return cuts if closed else None

    def _cut(self, operand: int, cut: Cut, cuts: dict[int, Split]) -> None:
        """Cut a parameter, and the cast of it that the product reads."""
        storage = self.graph.tensors[operand].storage
        parameter = self.parameters.get(self.origin.get(storage, -1))
        if parameter is None:
            raise CannotShard("a product adds something that is no parameter")
        split = split_of(self.graph.tensors[operand].layout, cut, self.ways)
        cast = self.graph.storages[storage].nbytes / self.graph.storages[parameter.storage].nbytes
        cuts[parameter.storage] = split._replace(period=round(split.period / cast))
        self.sharding.placements[storage] = split

    def _follow(self, first: int, cuts: dict[int, Split]) -> bool:
        closed, position, end = False, first, first
        while position <= end:
            op, self._stuck = self.graph.ops[position], position
            if op.signature.name in self.products and (weight := self._weight(position)) is not None:
                rows, matrix = _operands(op)
                given = self.sharding.cut(rows)
                if given is not None and given.dim == 1:
                    if weight in cuts:
                        raise CannotShard("a weight would have to be cut twice")
                    self._cut(matrix, Cut(len(self.graph.tensors[matrix].layout.shape) - 2), cuts)
                    closed = True
            else:
                self._cut_along(op, cuts)
            self.sharding.place(position, op)
            if op.signature.name in _OVER_FEATURES and PARTIAL in map(self._placement, op.outputs):
                raise CannotShard(f"{op.signature.name} needs whole rows")
            closed = closed or (
                op.signature.name == "aten._log_softmax" and self.sharding.cut(op.inputs[0]) is not None
            )
            for t in op.outputs:
                storage = self.graph.tensors[t].storage
                if isinstance(self.sharding.placements.get(storage), Split) and storage not in self.origin:
                    end = max(end, min(self.last_use.get(storage, -1), self.forward - 1))
            position += 1
        return closed

    def _placement(self, tensor: int) -> Placement:
        return self.sharding.placements.get(self.graph.tensors[tensor].storage)

    def _cut_along(self, op: Op, cuts: dict[int, Split]) -> None:
        """Cut a parameter that is added to parts, or multiplied with them, as they are: a bias of its own."""
        found = [
            (len(x.shape) - c.dim, c)
            for t, x in zip(op.inputs, op.signature.inputs, strict=True)
            if (c := self.sharding.cut(t))
        ]
        for t, layout in zip(op.inputs, op.signature.inputs, strict=True):
            storage = self.graph.tensors[t].storage
            for from_last, cut in found if storage in self.origin and storage not in self.sharding.placements else ():
                dim = len(layout.shape) - from_last
                if dim >= 0 and layout.shape[dim] > 1 and cut.tokens is False:
                    self._cut(t, cut._replace(dim=dim), cuts)
                    break

    def _before_the_loss(self) -> Iterator[int]:
        """Products whose result the loss takes the softmax of, views, casts and shifts apart."""
        product_of: dict[int, int] = {}  # storage → the product whose result it holds
        for position, op in enumerate(self.graph.ops[: self.forward]):
            read, made = ([self.graph.tensors[t].storage for t in side] for side in (op.inputs, op.outputs))
            if op.signature.name in PRODUCTS:
                product_of.update(dict.fromkeys(made, position))
            elif len(read) == 1 and read[0] in product_of:
                if op.signature.name == "aten._log_softmax":
                    yield product_of[read[0]]
                if len({x.shape[-1:] for x in (*op.signature.inputs, *op.signature.outputs)}) == 1:
                    for storage in made:
                        product_of.setdefault(storage, product_of[read[0]])

    def _tables(self, cuts: dict[int, Split]) -> Iterator[str]:
        for op in self.graph.ops[: self.forward]:
            if op.signature.name == "aten.embedding":
                storage = self.origin.get(self.graph.tensors[op.inputs[0]].storage)
                if (
                    storage is not None
                    and self.parameters[storage].gradient is not None
                    and op.signature.inputs[0].shape[0] >= self.ways
                ):
                    cuts.setdefault(storage, split_of(self.parameters[storage].layout, Cut(0, uneven=True), self.ways))
                    yield op.module
