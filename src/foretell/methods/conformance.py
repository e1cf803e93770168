"""What every method must keep to, as checks that a third party can run on a method of its own.

    from foretell.methods.conformance import check
    check(MyMethod)

    python -m foretell.methods.conformance package.module:MyMethod

They say nothing of how good a method is: the steps they use are made up.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import product
from typing import Final

from foretell.errors import ForetellError
from foretell.graph import Graph, Input, Layout, Op, Signature, Storage, Tensor
from foretell.hardware import Cluster
from foretell.methods.protocol import DEVICE_TIME, HOST_TIME, MEMORY, STEP_TIME, Example, Method, Prediction, Query
from foretell.plans import Plan

Factory = Callable[[], Method]
_SAME: Final = 1e-5  # relative: the order of a sum may differ
_WIDTHS: Final = (256, 384, 512, 768)
_BATCHES: Final = (8, 16, 32)
_SETTINGS: Final = ((1, "h200"), (2, "2xh200"), (4, "4xh200"))


class NotConforming(AssertionError):
    """A method does not keep to the protocol, and how."""


def check(factory: Factory, *, examples: Sequence[Example] | None = None) -> tuple[str, ...]:
    """Run every check on a method; the names of those it passed, or NotConforming with the first it did not."""
    case = Case(factory, list(examples) if examples is not None else made_up())
    for name, one in CHECKS.items():
        try:
            one(case)
        except NotConforming as error:
            raise NotConforming(f"{getattr(factory, '__name__', factory)} fails {name!r}: {error}") from error
    return tuple(CHECKS)


class Case:
    """A method under check; fits that several checks look at are made once."""

    def __init__(self, factory: Factory, examples: Sequence[Example]) -> None:
        self.factory = factory
        self.examples = examples
        self.queries = [e.query for e in examples]
        self.given = _contents(examples)

    @cached_property
    def fitted(self) -> Method:
        return self.factory().fit(self.examples)

    @cached_property
    def answers(self) -> list[Prediction]:
        return self.fitted.predict(self.queries)

    @cached_property
    def again(self) -> Method:
        return self.factory().fit(self.examples)


def _has_a_name(case: Case) -> None:
    name = case.factory().name
    _that(isinstance(name, str) and bool(name.strip()), f"name must be a text, got {name!r}")


def _fit_returns_the_method(case: Case) -> None:
    made = case.factory()
    _that(made.fit(case.examples) is made, "fit must return the method itself")
    case.fitted = made


def _answers_in_order(case: Case) -> None:
    answers, queries = case.answers, case.queries
    _that(isinstance(answers, list), f"predict must return a list, got {type(answers).__name__}")
    _that(len(answers) == len(queries), f"{len(queries)} queries got {len(answers)} predictions")
    _alike(answers, case.fitted.predict(queries[::-1])[::-1], "queries in another order get other answers")
    _that(case.fitted.predict([]) == [], "no queries must get no predictions")


def _answers_are_numbers(case: Case) -> None:
    """A value is finite and positive; where there is none, `why` says the reason."""
    unknown = [replace(q, graph=None, architecture="never seen", settings={}) for q in case.queries[:2]]
    for answer in [*case.answers, *case.fitted.predict(unknown)]:
        _that(bool(answer.values or answer.why), "a prediction has neither a value nor a `why`")
        _positive(answer)
        for target in {*answer.low, *answer.high}:
            _that(target in answer.values, f"an interval is given for {target}, which is not predicted")
            low, high = answer.low.get(target, 0.0), answer.high.get(target, math.inf)
            _that(low <= answer.values[target] <= high, f"{target}: the value lies outside its own interval")
    _that(any(a.values for a in case.answers), "nothing was predicted, not even for steps it was fitted on")


def _does_not_change_what_it_is_given(case: Case) -> None:
    assert case.answers
    _that(_contents(case.examples) == case.given, "examples were changed")


def _is_deterministic(case: Case) -> None:
    _alike(case.answers, case.again.predict(case.queries), "two fits on the same examples differ; fix the seed")


def _forgets(case: Case) -> None:
    """A second fit is as if there had been no first."""
    half = [e for e in case.examples if e.query.architecture != case.examples[0].query.architecture]
    queries = [e.query for e in half]
    again = case.again.fit(half).predict(queries)
    del case.again
    _alike(again, case.factory().fit(half).predict(queries), "a second fit remembers the first")


def _takes_absent_targets(case: Case) -> None:
    """Every fourth example says nothing, and only some say more than the step time."""
    thin = []
    for i, e in enumerate(case.examples):
        measured = {} if i % 4 == 0 else {STEP_TIME: e.measured[STEP_TIME]} if i % 2 else e.measured
        thin.append(replace(e, measured=measured, ops=()))
    for answer in case.factory().fit(thin).predict(case.queries):
        _positive(answer)


def _refuses_to_fit_on_nothing(case: Case) -> None:
    """Either an error that says so, or predictions that say why not; never a crash."""
    try:
        answers = case.factory().fit([]).predict(case.queries[:1])
    except ForetellError:
        return
    except Exception as error:
        raise NotConforming(f"no examples end in {type(error).__name__}: {error}; raise a ForetellError") from error
    for answer in answers:
        _that(bool(answer.values or answer.why), "fitted on nothing, it gives neither a value nor a `why`")
        _positive(answer)


def _pickles(case: Case) -> None:
    copied = pickle.loads(pickle.dumps(case.fitted))  # nosec B301  # its own
    _alike(copied.predict(case.queries), case.answers, "a pickled copy answers otherwise")


CHECKS: Final[dict[str, Callable[[Case], None]]] = {
    "has a name": _has_a_name,
    "fit returns the method": _fit_returns_the_method,
    "answers in order": _answers_in_order,
    "answers are numbers": _answers_are_numbers,
    "does not change what it is given": _does_not_change_what_it_is_given,
    "pickles": _pickles,
    "is deterministic": _is_deterministic,
    "forgets earlier fits": _forgets,
    "takes absent targets": _takes_absent_targets,
    "refuses to fit on nothing": _refuses_to_fit_on_nothing,
}


def _that(holds: bool, otherwise: str) -> None:
    if not holds:
        raise NotConforming(otherwise)


def _positive(answer: Prediction) -> None:
    for target, value in answer.values.items():
        _that(math.isfinite(value) and value > 0, f"{target} is {value!r}; leave it out and say `why`")


def _contents(examples: Sequence[Example]) -> list[tuple[object, ...]]:
    return [(dict(e.measured), dict(e.query.settings), tuple(e.ops), id(e.query.graph)) for e in examples]


def _alike(first: Sequence[Prediction], second: Sequence[Prediction], otherwise: str) -> None:
    for a, b in zip(first, second, strict=True):
        same = a.values.keys() == b.values.keys() and all(
            math.isclose(value, b.values[target], rel_tol=_SAME) for target, value in a.values.items()
        )
        _that(same, f"{otherwise}: {dict(a.values)} and {dict(b.values)}")


# Made-up steps: perceptrons of several widths and depths, timed by their work.


def made_up() -> list[Example]:
    """Two dozen steps of a few networks on one, two and four devices."""
    examples = []
    for i, (width, batch) in enumerate(product(_WIDTHS, _BATCHES)):
        for devices, cluster in (_SETTINGS[0], _SETTINGS[1 + i % 2]):
            graph = perceptron(width, layers=2 + width // 256, batch=batch)
            ops = tuple(3e-6 + sum(x.numel for x in op.signature.inputs) * 1e-10 for op in graph.ops)
            device = sum(ops)
            query = Query(
                architecture=f"perceptron-{width}",
                plan=Plan(dp=devices),
                cluster=Cluster.parse(cluster),
                graph=graph,
                batch=float(batch * devices),
                dataset="vectors",
                settings={"precision": "fp32"},
            )
            step = device * 1.1 + 1e-4 * (devices - 1)
            allocated = float(sum(s.nbytes for s in graph.storages))
            measured = {STEP_TIME: step, DEVICE_TIME: device, HOST_TIME: 1e-5 * len(graph.ops), MEMORY: allocated}
            examples.append(Example(query=query, measured=measured, cost=20 * step, ops=ops))
    return examples


def perceptron(width: int, *, layers: int, batch: int) -> Graph:
    """A training step of linear layers and ReLUs, op by op; every storage lives until the step ends."""
    square, flat = (Layout((rows, width), (width, 1), "float32") for rows in (width, batch))
    tensors: list[Tensor] = []
    stored: list[tuple[int, str, int]] = []  # bytes, role, when it is born
    ops: list[Op] = []

    def tensor(layout: Layout, role: str) -> int:
        tensors.append(Tensor(layout, len(stored)))
        stored.append((layout.nbytes, role, -1 if role in ("parameter", "input") else len(ops)))
        return len(tensors) - 1

    def call(name: str, phase: str, module: str, out: int, **inputs: int) -> int:
        layouts = tuple(tensors[i].layout for i in inputs.values())
        arguments = tuple((n, Input(i)) for i, n in enumerate(inputs))
        signature = Signature(f"aten.{name}.default", layouts, (tensors[out].layout,), arguments)
        ops.append(Op(signature, phase, module, tuple(inputs.values()), (out,)))
        return out

    weights = [tensor(square, "parameter") for _ in range(layers)]
    at = tensor(flat, "input")
    for i, weight in enumerate(weights):
        at = call("mm", "forward", f"layers.{i}", tensor(flat, "activation"), self=at, mat2=weight)
        at = call("relu", "forward", f"layers.{i}", tensor(flat, "activation"), self=at)
    for i, weight in reversed(list(enumerate(weights))):
        gradient = call("mm", "backward", f"layers.{i}", tensor(square, "gradient"), self=weight, mat2=weight)
        at = call("mm", "backward", f"layers.{i}", tensor(flat, "temporary"), self=at, mat2=weight)
        call("add_", "optimizer", "", weight, self=weight, other=gradient)
    storages = tuple(Storage(nbytes, role, born, len(ops)) for nbytes, role, born in stored)
    return Graph(name=f"perceptron-{width}", ops=tuple(ops), tensors=tuple(tensors), storages=storages, samples=batch)


def main() -> None:
    """The suite from the command line: what a method passes, or the first it does not."""
    import sys

    from foretell.methods import method

    if len(sys.argv) != 2:
        sys.exit("usage: python -m foretell.methods.conformance METHOD, like ernest or package.module:Class")
    try:
        print("\n".join(check(method(sys.argv[1]))))
    except (NotConforming, ForetellError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
