"""Laws of forecasts, over six small steps: a few devices here, all of them in `whole.py`."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import foretell
from foretell.cost.model import load_model
from foretell.errors import InputError
from foretell.hardware import device, devices
from foretell.laws.answers import Answers, Case, cluster_of
from foretell.laws.between import is_at_least
from foretell.laws.floor import least_seconds
from foretell.laws.law import Compared, Law, Tolerance
from foretell.laws.scope import Scope, Step
from foretell.laws.suite import LAWS, check
from tests.laws.steps import captured, step

pytestmark = pytest.mark.slow  # steps are captured
DEVICES = ("h200", "t4")
OF_OTHERS = {"half-without-units": ("gaudi",)}  # laws that say nothing of these


@pytest.fixture(scope="module")
def answers() -> Answers:
    return Answers([_few(step("words")), _few(step("convolutions"))], load_model())


def _few(one: Step) -> Step:
    return replace(one, precisions=("amp-bf16", "amp-fp16", "fp32", "torch-fp32", "tf32"), batches=(16, 32))


def _scope(answers: Answers, law: str = "") -> Scope:
    near = [device(name) for name in ("h100-sxm", "a100-80g-sxm", "rtx-4090", *DEVICES)]
    chosen = [device(name) for name in OF_OTHERS.get(law, DEVICES)]
    return Scope(steps=list(answers.steps), devices=chosen, others=near, counts=(8,))


@pytest.mark.parametrize("name", LAWS)
def test_a_law_is_kept(name: str, answers: Answers) -> None:
    found = check(_scope(answers, name), answers, [LAWS[name]])
    assert found.laws[0].checked
    assert found.kept, found.to_dict()["laws"][0]["worst"]


def test_every_law_says_what_over_what_and_why() -> None:
    for law in LAWS.values():
        assert law.says.endswith(".")
        assert law.over
        assert law.tolerance.why
        assert 0 <= law.tolerance.part <= 0.15


def test_a_number_beyond_its_limit_breaks_a_law() -> None:
    def compare(scope: Scope, answers: Answers) -> Iterator[Compared]:
        yield Compared(where="here", number=1.2, limit=1.0)
        yield Compared(where="there", number=1.05, limit=1.0)
        yield Compared(where="nowhere", number=float("nan"), limit=1.0)

    law = Law(name="a", says="b.", over="c", tolerance=Tolerance(part=0.1, why="d"), compare=compare)
    none = Scope(steps=[], devices=[], others=[])
    found = check(none, Answers([], load_model()), [law])
    assert (found.laws[0].checked, found.laws[0].broken) == (3, 2)
    assert not found.kept


def test_a_board_is_at_least_another_by_its_facts_alone() -> None:
    assert is_at_least(device("h200"), device("h100-sxm"), "bf16")
    assert not is_at_least(device("h100-sxm"), device("h200"), "bf16")
    assert not is_at_least(device("cpu"), device("quadro-t2000"), "bf16")  # its cores are none of a board's
    assert any(
        is_at_least(one, other, "fp32") for one in devices() for other in devices() if one.vendor != other.vendor
    )
    assert not is_at_least(device("h200"), device("h200"), "bf16")


def test_a_run_that_was_stopped_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    case = Case(step="dense", precision="fp32", batch=8, on="t4")
    first = Answers([step("dense")], load_model(), file)(case)
    file.write_text(file.read_text() + '["half a li')
    again = Answers([step("dense")], load_model(), file)
    again.again = None  # type: ignore[assignment,method-assign]  # nothing may be forecast anew
    assert again(case) == first


def test_what_cannot_be_run_has_no_answer() -> None:
    case = Case(step="dense", precision="fp32", batch=8, on="2xt4", plan="dp=1,cp=2")
    assert Answers([step("dense")], load_model())(case) is None


def test_the_least_a_step_takes_is_its_arithmetic_at_the_peak() -> None:
    graph, t4 = captured("dense", "fp32", 8), device("t4")
    faster = replace(t4, peaks={unit: rate * 1e6 for unit, rate in t4.peaks.items()}, bandwidth=t4.bandwidth * 1e6)
    assert least_seconds(graph, t4) > 1e5 * least_seconds(graph, faster) > 0


def test_a_case_has_one_host_and_betters_one_fact() -> None:
    node = cluster_of(Case(step="", precision="fp32", batch=1, on="2xt4", better="bandwidth")).nodes[0]
    assert node.host.name == "xeon-sapphire-rapids"
    assert node.device.bandwidth == 1.25 * device("t4").bandwidth


def test_a_law_nobody_knows_is_an_error() -> None:
    with pytest.raises(InputError, match="roofline"):
        foretell.check_laws(captured("dense", "fp32", 8), on="t4", only=["rooflin"])


def test_an_unlikely_device_breaks_the_roofline() -> None:
    """A forecast that is not from physics is found."""
    found = check(
        Scope(steps=[step("dense")], devices=[device("t4")], others=devices()),
        _TooFast([step("dense")], load_model()),
        [LAWS["roofline"]],
    )
    assert not found.kept


class _TooFast(Answers):
    def again(self, case: Case, graph: foretell.Graph) -> object:  # type: ignore[override]
        return replace(super().again(case, graph), device=1e-9)


def test_laws_go_from_process_to_process_by_name() -> None:
    for law in LAWS.values():
        assert pickle.loads(pickle.dumps(law)) is law
