"""Kernels of fused trainers: what Megatron, Transformer Engine and Apex run in one kernel replaces the captured ops.

Patterns are found by exact operators and by who reads what, never by the name of a model. What is not found stays as it
was captured. An op of a pattern that others need as well keeps the pattern from being replaced.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from foretell.capture.fusing.edit import Arguments, Fusing
from foretell.capture.fusing.experts import fuse_experts
from foretell.capture.fusing.latents import fuse_latents
from foretell.capture.fusing.routers import fuse_routers
from foretell.graph import Graph, Input, Layout, Op, Tensor
from foretell.workload import Kernels

_GATES: Final = {"aten.silu": "aten.silu_backward", "aten.gelu": "aten.gelu_backward"}


def with_fused_kernels(graph: Graph, kernels: Kernels) -> Graph:
    """The step with its patterns replaced, and a caveat with the share of memory traffic that is still op by op.

    Updates of main gradients are those of Megatron: trainers with an engine of their own add them up by themselves. A compiled
    cross entropy overwrites the softmax through a copy of it.
    """
    fusing, apart = Fusing(graph), kernels.apart
    fuse_experts(fusing, moves_fused="permute" not in apart)
    fuse_routers(fusing)
    if "rope" not in apart:
        fuse_latents(fusing)
        _rotations(fusing)
    for find in (_norms, _gates, _softmaxes, _dropouts):
        find(fusing)
    _losses(fusing, "compiled_cross_entropy_backward" if kernels.compiled_loss else "cross_entropy_backward")
    if kernels.of_megatron and "wgrad" not in apart:
        _weight_gradients(fusing)
    return fusing.graph_now()


def _only(found: Iterable[int | None]) -> list[int] | None:
    """All of them, or None where one is missing."""
    positions = list(found)
    return None if None in positions else [p for p in positions if p is not None]


# RMS norms written out: x · rsqrt(mean(x²) + ε) · weight, in fp32 and cast back.


def _norms(step: Fusing) -> None:
    for root, op in list(step.named("forward", "aten.rsqrt")):
        chain = _norm_chain(step, root)
        if chain is not None:
            _fuse_norm(step, root, op, *chain)


def _norm_chain(step: Fusing, root: int) -> tuple[list[int], int, int, int] | None:
    """Its forward ops, the storage of what is normed, the op that weighs it, and the weight's tensor."""
    squares = step.storage(step.at(root).inputs[0])
    chain = [root]
    for name in ("aten.add", "aten.mean", "aten.pow"):
        position = step.maker(squares, name)
        if position is None:
            return None
        chain.append(position)
        squares = step.storage(step.at(position).inputs[0])
    x = squares
    cast = step.maker(x, "aten._to_copy")
    if cast is not None and step.at(cast).phase == "forward" and step.at(cast).module == step.at(root).module:
        chain.append(cast)
        x = step.storage(step.at(cast).inputs[0])
    scaled = step.only_reader(step.made(root), "forward", "aten.mul")
    if scaled is None:
        return None
    chain.append(scaled)
    normed = step.made(scaled)
    back = step.only_reader(normed, "forward", "aten._to_copy")
    if back is not None:
        chain.append(back)
        normed = step.made(back)
    weighed = step.only_reader(normed, "forward", "aten.mul")
    if weighed is None:
        return None
    weight = [t for t in step.at(weighed).inputs if step.storage(t) != normed]
    if len(weight) != 1 or len(step.tensors[weight[0]].layout.shape) != 1:
        return None
    return [*chain, weighed], x, weighed, weight[0]


def _fuse_norm(step: Fusing, root: int, op: Op, chain: list[int], x: int, weighed: int, weight: int) -> None:
    inside = {step.made(p) for p in chain} - {step.made(weighed)}
    backward = _backward_of(step, inside, {x, step.storage(weight)}, op.module)
    if backward is None:
        return
    given, dx, dweight, positions = backward
    first = next(p for p in sorted(chain) if x in map(step.storage, step.at(p).inputs))
    source, shape = step.tensor_of(first, x), step.tensors[weight].layout.shape
    arguments: Arguments = (("input", Input(0)), ("normalized_shape", shape), ("weight", Input(1)), ("eps", None))
    rstd = op.outputs[0]
    step.put(
        chain, weighed, "aten._fused_rms_norm.default", [source, weight], [*step.at(weighed).outputs, rstd], arguments
    )
    dweight = step.viewed(dweight, step.tensors[weight])
    wanted = (("output_mask", (True, True)),)
    named = ("grad_out", "input", "rstd", "weight")
    arguments = (*((name, Input(i)) for i, name in enumerate(named)), ("normalized_shape", shape), *wanted)
    step.put(
        positions, min(positions), "aten._fused_rms_norm_backward.default", [given, source, rstd, weight], [dx, dweight],
        arguments,
    )  # fmt: skip


def _backward_of(
    step: Fusing, inside: set[int], outside: set[int], module: str
) -> tuple[int, int, int, list[int]] | None:
    """Of a norm's backward pass: the gradient it is given, the two it makes, and its ops.

    They follow each other in the norm's module, and compute with nothing but the gradient, the norm's own values, what
    it was given, and each other's results.
    """
    read = sorted({p for s in inside for p in step.readers[s] if (op := step.ops[p]) and op.phase == "backward"})
    if not read or any(step.at(p).module != module for p in read):
        return None
    begin, end = read[0], read[-1]
    while begin > 0 and (op := step.ops[begin - 1]) is not None and (op.module, op.phase) == (module, "backward"):
        begin -= 1
    while end + 1 < len(step.ops) and (op := step.ops[end + 1]) is not None and (op.module, op.phase) == (module, "backward"):  # fmt: skip
        end += 1
    given: int | None = None
    made, positions = dict[int, int](), list[int]()
    for position in range(begin, end + 1):
        op = step.at(position)
        if not step.computes(op):
            continue
        strange = {step.storage(t) for t in op.inputs} - inside - outside - set(made)
        if strange and given is None:
            given = step.tensor_of(position, min(strange))
        if op.signature.mutates or (strange and (given is None or strange != {step.storage(given)})):
            continue
        positions.append(position)
        made |= {step.storage(t): t for t in op.outputs}
    own = set(positions)
    kept = [s for s in made if any(p not in own for p in step.readers[s])]
    kept = [*kept, *(s for s in made if step.graph.storages[s].role == "gradient" and s not in kept)]
    sizes = {s: step.tensors[made[s]].layout.numel for s in kept}
    if given is None or len(kept) != 2 or len(set(sizes.values())) != 2:
        return None
    dweight, dx = sorted(kept, key=lambda s: sizes[s])
    return given, made[dx], made[dweight], positions


# Gates: silu(gate) · up.


def _gates(step: Fusing) -> None:
    for position, op in list(step.named("forward", *_GATES)):
        gate, opened = step.storage(op.inputs[0]), step.made(position)
        product = step.only_reader(opened, "forward", "aten.mul")
        to_up = step.only_reader(opened, "backward", "aten.mul")
        to_gate = step.only_reader(gate, "backward", _GATES[op.signature.name])
        found = _only((product, to_up, to_gate))
        if found is None or product is None or to_up is None or to_gate is None:
            continue
        others = [t for t in step.at(product).inputs if step.storage(t) != opened]
        opening = step.maker(step.storage(step.at(to_gate).inputs[0]), "aten.mul")
        if len(others) != 1 or opening is None:
            continue
        up = others[0]
        given = [t for t in step.at(opening).inputs if step.storage(t) != step.storage(up)]
        alike = step.tensors[op.inputs[0]].layout.shape == step.tensors[up].layout.shape
        if len(given) != 1 or not alike or step.only_reader(step.made(opening), "backward", *_GATES.values()) is None:
            continue
        step.put([position, product], product, "aten.mul.Tensor", [op.inputs[0], up], step.at(product).outputs)
        old = [to_up, to_gate, opening]
        outputs = [step.at(to_gate).outputs[0], step.at(to_up).outputs[0]]
        step.put(old, min(old), "foretell.gated_backward.default", [given[0], op.inputs[0], up], outputs)


# Rotary positions: x · cos + rotate_half(x) · sin, and the same on the way back.


def _rotations(step: Fusing) -> None:
    for position, op in [*step.named("forward", "aten.neg"), *step.named("backward", "aten.neg")]:
        found = _rotation(step, position) if op.phase == "forward" else _rotation_back(step, position)
        if found is not None:
            old, at, x, tables, y = found
            step.put(old, at, "foretell.rotary.default", [x, *tables], [y])


_Rotation = tuple[list[int], int, int, list[int], int]  # ops, where to, x, cos and sin, y


def _rotation(step: Fusing, negated: int) -> _Rotation | None:
    x = step.storage(step.at(negated).inputs[0])
    turned = step.only_reader(step.made(negated), "forward", "aten.cat")
    with_sin = None if turned is None else step.only_reader(step.made(turned), "forward", "aten.mul")
    total = None if with_sin is None else step.only_reader(step.made(with_sin), "forward", "aten.add")
    if turned is None or with_sin is None or total is None:
        return None
    other = [step.storage(t) for t in step.at(total).inputs if step.storage(t) != step.made(with_sin)]
    with_cos = step.maker(other[0], "aten.mul") if len(other) == 1 else None
    if with_cos is None or x not in map(step.storage, step.at(with_cos).inputs):
        return None
    if x not in map(step.storage, step.at(turned).inputs):
        return None
    tables = _tables(step, (with_cos, x), (with_sin, step.made(turned)))
    old = [negated, turned, with_sin, with_cos, total]
    return None if tables is None else (old, total, step.tensor_of(with_cos, x), tables, step.at(total).outputs[0])


def _rotation_back(step: Fusing, negated: int) -> _Rotation | None:
    turned = step.storage(step.at(negated).inputs[0])
    with_sin = step.maker(turned, "aten.mul")
    halves = [p for p in step.readers[turned] if step.ops[p] is not None and p != negated]
    first = step.only_reader(step.made(negated), "backward", "aten.slice_backward")
    if with_sin is None or first is None or len(halves) != 1:
        return None
    if step.at(halves[0]).signature.name != "aten.slice_backward":
        return None
    sums = _sums(step, {step.made(first), step.made(halves[0])})
    if sums is None:
        return None
    rest = {s for p in sums for s in _read(step, p)} - {step.made(p) for p in (*sums, first, halves[0])}
    with_cos, total = step.maker(rest.pop(), "aten.mul") if len(rest) == 1 else None, max(sums)
    given = set() if with_cos is None else _read(step, with_cos) & _read(step, with_sin)
    if with_cos is None or len(given) != 1:
        return None
    (g,) = given
    tables = _tables(step, (with_cos, g), (with_sin, g))
    old = [negated, with_sin, *halves, first, *sums, with_cos]
    outputs = step.at(total).outputs[0]
    return None if tables is None else (old, min(old), step.tensor_of(with_sin, g), tables, outputs)


def _sums(step: Fusing, terms: set[int]) -> list[int] | None:
    """The two ops that add two terms and one more, in any order."""
    first = _only(step.only_reader(s, "backward", "aten.add") for s in terms)
    if first is None:
        return None
    if len(set(first)) == 2:  # one of them adds to what the other has made
        first.sort()
        return first if step.made(first[0]) in _read(step, first[1]) else None
    after = step.only_reader(step.made(first[0]), "backward", "aten.add")
    return None if after is None else [first[0], after]


def _read(step: Fusing, position: int) -> set[int]:
    return {step.storage(t) for t in step.at(position).inputs}


def _tables(step: Fusing, *products: tuple[int, int]) -> list[int] | None:
    """What each product multiplies a storage with."""
    found = [[t for t in step.at(p).inputs if step.storage(t) != s] for p, s in products]
    return [t for (t,) in found] if all(len(each) == 1 for each in found) else None


# Scores of attention written out: scaled, masked and through a softmax in one kernel, which keeps what it makes.


def _softmaxes(step: Fusing) -> None:
    for position, op in list(step.named("forward", "aten._softmax")):
        before, scores = _scaled_and_masked(step, position)
        softmax, after = op.outputs[0], [position]
        cast = step.only_reader(step.made(position), "forward", "aten._to_copy")
        back = step.only_reader(step.made(position), "backward", "aten._softmax_backward_data")
        if back is None or not before:
            continue
        if cast is not None:
            softmax, after = step.at(cast).outputs[0], [position, cast]
        ways_back = _unscaled(step, back)
        given = step.maker(step.storage(step.at(back).inputs[0]), "aten._to_copy")
        gradient = step.at(back).inputs[0] if given is None else step.at(given).inputs[0]
        outputs = step.at(ways_back[-1]).outputs
        arguments = op.signature.arguments
        step.put([*before, *after], max(after), "aten._softmax.default", [scores], [softmax], arguments)
        old = [*ways_back, *([] if given is None else [given])]
        arguments = step.at(back).signature.arguments
        step.put(old, max(old), "aten._softmax_backward_data.default", [gradient, softmax], outputs, arguments)


def _scaled_and_masked(step: Fusing, position: int) -> tuple[list[int], int]:
    """Ops between scores and their softmax, and the scores."""
    found, tensor = list[int](), step.at(position).inputs[0]
    while (maker := step.written.get(step.storage(tensor))) is not None and (op := step.ops[maker]) is not None:
        if op.phase != "forward" or op.signature.name not in ("aten._to_copy", "aten.add", "aten.mul", "aten.div"):
            break
        if len(step.readers[step.storage(tensor)]) != 1:
            break
        full = [t for t in op.inputs if step.tensors[t].layout.shape == step.tensors[op.outputs[0]].layout.shape]
        if len(full) != 1:  # a mask is one for all heads
            break
        found.append(maker)
        tensor = full[0]
    return found, tensor


def _unscaled(step: Fusing, position: int) -> list[int]:
    """An op and those after it that only cast or scale what it makes."""
    found = [position]
    while (
        after := step.only_reader(step.made(found[-1]), "backward", "aten._to_copy", "aten.mul", "aten.div")
    ) is not None:
        if len(step.at(after).inputs) != 1:
            break
        found.append(after)
    return found


# Cross entropy: half-precision logits are read once and their softmax is kept in fp32, which becomes the gradient.


def _losses(step: Fusing, backward: str) -> None:
    for position, op in list(step.named("forward", "aten._log_softmax")):
        softmax = step.made(position)
        cast = step.maker(step.storage(op.inputs[0]), "aten._to_copy")
        picked = step.only_reader(softmax, "forward", "aten.nll_loss_forward")
        back = [p for p in step.readers[softmax] if (o := step.ops[p]) is not None and o.phase == "backward"]
        names = [step.at(p).signature.name for p in back]
        if picked is None or names != ["aten.nll_loss_backward", "aten._log_softmax_backward_data"]:
            continue
        gradient = step.at(back[1]).outputs[0]
        old = [*back]
        uncast = step.only_reader(step.storage(gradient), "backward", "aten._to_copy")
        if cast is not None and step.only_reader(step.made(cast), "forward", "aten._log_softmax") == position:
            logits = step.at(cast).inputs[0]
            flat = step.viewed(logits, step.tensors[op.inputs[0]])
            step.put(
                [cast, position], position, "aten._log_softmax.default", [flat], op.outputs, op.signature.arguments
            )
            if uncast is not None:
                old.append(uncast)
                gradient = step.at(uncast).outputs[0]
        flat = step.viewed(gradient, step.tensors[op.outputs[0]])
        step.put(old, min(old), f"foretell.{backward}.default", [op.outputs[0]], [flat])


# Dropout and the sum with the residual that follows it.


def _dropouts(step: Fusing) -> None:
    for position, op in list(step.named("forward", "aten.native_dropout")):
        total = step.only_reader(step.made(position), "forward", "aten.add")
        residual = [] if total is None else [t for t in step.at(total).inputs if step.storage(t) != step.made(position)]
        if total is None or len(residual) != 1 or len(op.outputs) != 2:
            continue
        inputs, outputs = [op.inputs[0], residual[0]], [step.at(total).outputs[0], op.outputs[1]]
        step.put([position, total], total, "foretell.dropout_add.default", inputs, outputs)


# Products that add weight gradients to main gradients by themselves.


def _weight_gradients(step: Fusing) -> None:
    for position, op in list(step.named("backward", "aten.add_")):
        main, made = step.storage(op.inputs[0]), step.storage(op.inputs[-1])
        product = step.maker(made, "aten.mm") or step.maker(made, "aten._grouped_mm")
        if product is None or step.graph.storages[main].born >= 0 or step.graph.storages[main].role != "gradient":
            continue
        if step.only_reader(made, "backward", "aten.add_") != position:
            continue
        old = step.at(product)
        whole = step.tensors[op.inputs[0]].layout
        shape = step.tensors[old.outputs[0]].layout.shape
        if shape not in (whole.shape, whole.shape[::-1]):
            continue
        strides = whole.strides if shape == whole.shape else whole.strides[::-1]
        step.tensors.append(Tensor(Layout(shape, strides, whole.dtype), main))
        outputs = (len(step.tensors) - 1,)
        step.ops[position] = None
        signature = replace(old.signature, outputs=(step.tensors[outputs[0]].layout,))
        step.ops[product] = replace(old, signature=signature, outputs=outputs)
        step.fused.add(product)
