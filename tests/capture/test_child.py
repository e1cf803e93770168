"""The capturing child: its answers, the user's mistakes it explains, and the ways it can die."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from foretell.capture import capture
from foretell.capture import child as child_module
from foretell.capture.explain import explain
from foretell.capture.recorder import Recorder
from foretell.errors import CaptureError, InputError, PlanError, SourceError, WorkloadError
from foretell.sources.settings import texts_of
from foretell.workload import Workload
from tests.capture.tiny import mlp, workload

ON_META = torch.randn(2, 8, device="meta")


def linear(**settings: Any) -> Workload:
    return workload(**{"model": lambda: nn.Linear(8, 8), "batch": lambda: torch.randn(2, 8), **settings})


def failing(**settings: Any) -> str:
    with pytest.raises(WorkloadError) as caught:
        capture(linear(**settings))
    return str(caught.value)


# The user's mistakes: each message says what, got, and what to do next.


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"loss": lambda model, x: model(x)}, r"loss of workload 'tiny' has shape \(2, 8\).*scalar.*\.mean\(\)"),
        (
            {"loss": lambda model, x: model(x).mean().item()},
            r"returned float, not a tensor.*scalar to call backward on",
        ),
        ({"loss": lambda model, x: {"loss": model(x)}}, "returned dict, not a tensor"),
        ({"loss": lambda model, x: model(x).detach().mean()}, r"does not depend on any trainable parameter.*detach"),
        ({"model": lambda: torch.zeros(3)}, r"returned Tensor, not a torch\.nn\.Module"),
        ({"model": lambda: nn.Linear(8, 8).requires_grad_(False)}, "trains nothing.*optimizer=None for inference"),
        ({"batch": lambda: torch.randn(2, 8, device="meta")}, r"the batch holds a tensor on meta.*leave out device"),
        ({"batch": lambda: ON_META}, r"the batch holds a tensor on meta.*leave out device"),
    ],
)
def test_a_workload_that_is_wrong(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(WorkloadError, match=says) as caught:
        capture(linear(**settings))
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            {"precision": "fp61"},
            "precision='fp61' is not possible.*Did you mean 'fp16'.*Allowed: fp32, torch-fp32, tf32, bf16",
        ),
        ({"samples": -3}, "samples must be a whole number of at least 1, got -3"),
        ({"tokens": "many"}, "tokens must be a whole number of at least 1, got 'many'"),
        ({"grad_accumulation": 0}, "grad_accumulation must be a whole number of at least 1, got 0"),
        ({"name": ""}, "needs a name"),
        ({"model": nn.Linear(2, 2).weight}, "model of workload 'tiny' must be a function, got Parameter"),
        ({"optimizer": 3}, "must be a function or None, got int"),
        ({"compile": "max_autotune"}, "Did you mean 'max-autotune'"),
    ],
)
def test_a_workload_that_is_wrong_from_the_start(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(WorkloadError, match=says):
        linear(**settings)


def broken_loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x[:, :5]).mean()


def test_a_failure_in_the_users_code_shows_their_frames_and_not_torchs() -> None:
    text = failing(loss=broken_loss)
    assert "RuntimeError" in text
    assert "model(x[:, :5])" in text
    assert Path(__file__).name in text
    assert "site-packages" not in text
    assert os.path.join("foretell", "capture", "trace.py") not in text


def test_a_failure_while_the_model_is_built() -> None:
    def build() -> nn.Module:
        raise KeyError("no such width")

    text = failing(model=build)
    assert "KeyError: 'no such width'" in text
    assert 'raise KeyError("no such width")' in text


def test_a_program_that_exits_is_the_users() -> None:
    assert "SystemExit: not today" in failing(batch=lambda: sys.exit("not today"))


def test_a_long_message_is_cut() -> None:
    assert len(explain(ValueError("x" * 100_000))) < 2000


class Silent(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


class NotAnException(BaseException):
    """Which no `except Exception` catches."""


def raising(error: BaseException) -> Any:
    raise error


def test_an_exception_that_cannot_say_what_it_is() -> None:
    assert "failed in its own code with Silent: (its message cannot be read: ValueError)" in failing(
        model=lambda: raising(Silent())
    )


@pytest.mark.parametrize("kind", [NotAnException, KeyboardInterrupt, GeneratorExit])
def test_whatever_is_raised_is_the_users(kind: type[BaseException]) -> None:
    assert f"failed in its own code with {kind.__name__}: by me" in failing(batch=lambda: raising(kind("by me")))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"batch": lambda: torch.randn(0, 8)}, r"has no samples: its first tensor has shape \(0, 8\)\. Make it of"),
        ({"batch": lambda: (torch.randn(0, 8), 3)}, "has no samples"),
    ],
)
def test_a_batch_of_nothing(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(WorkloadError, match=says):
        capture(linear(**settings))


@pytest.mark.parametrize("source", ["a" * 5000, "b" * 300 + ".py:f", "c\0d", "d" * 300 + ".graph"])
def test_a_source_that_no_system_could_look_for(source: str) -> None:
    with pytest.raises(SourceError, match=r"no source '.*Give a name, or the path of a file") as caught:
        capture(source)
    assert len(str(caught.value)) < 300


# The ways to die.


@pytest.mark.parametrize("die", [lambda: os._exit(3), lambda: os.kill(os.getpid(), signal.SIGKILL)])
def test_a_child_that_crashes_takes_nobody_along(die: Callable[[], Any]) -> None:
    with pytest.raises(CaptureError, match="ended without an answer") as caught:
        capture(linear(batch=die))
    assert caught.value.exit_code == 1


def test_a_capture_that_takes_too_long_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORETELL_CAPTURE_LIMIT", "0.2")

    def forever() -> None:
        while True:
            pass

    started = time.monotonic()
    with pytest.raises(CaptureError, match=r"capturing tiny took longer than 0\.2 s.*FORETELL_CAPTURE_LIMIT"):
        capture(linear(batch=forever))
    assert time.monotonic() - started < 60


@pytest.mark.parametrize("text", ["soon", "nan", "-1", "0", ""])
def test_a_limit_that_is_none(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("FORETELL_CAPTURE_LIMIT", text)
    with pytest.raises(InputError, match=f"must be a number of seconds above 0, got '{text}'"):
        capture(linear())


def test_there_need_be_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORETELL_CAPTURE_LIMIT", "inf")
    monkeypatch.setenv("FORETELL_CAPTURE_MEMORY", "99999999 TiB")
    assert capture(linear()).samples == 2


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORETELL_CAPTURE_MEMORY", "1 GiB")
    assert "MemoryError" in failing(batch=lambda: torch.frombuffer(bytearray(2**31), dtype=torch.uint8))


@pytest.mark.parametrize("text", ["plenty", "0", "5 apples"])
def test_a_limit_of_memory_that_is_none(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("FORETELL_CAPTURE_MEMORY", text)
    with pytest.raises(InputError, match="FORETELL_CAPTURE_MEMORY: "):
        capture(linear())


class OfTheirs(PlanError):
    """An exception of ours, made more precise by a user."""


def test_an_error_of_ours_stays_what_it_is() -> None:
    with pytest.raises(PlanError, match="by me") as caught:
        capture(linear(model=lambda: raising(OfTheirs("by me"))))
    assert type(caught.value) is PlanError


def test_a_process_that_was_started_and_what_it_prints_hold_nobody_up() -> None:
    def batch() -> torch.Tensor:
        subprocess.Popen(["sleep", "1000"])
        os.write(1, b"\xff\0" * 1_000_000)
        return torch.randn(2, 8)

    assert capture(linear(batch=batch)).samples == 2


def test_a_fork_that_goes_on_is_not_the_one_that_was_asked() -> None:
    def batch() -> torch.Tensor:
        for _ in range(3):
            os.fork()
        return torch.randn(2, 8)

    assert capture(linear(batch=batch)).samples == 2


def test_user_code_may_leave_the_session_and_hold_on_to_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORETELL_CAPTURE_LIMIT", "0.3")

    def batch() -> None:
        os.setsid()
        print(re.match(r"(a+)+$", "a" * 64 + "b"))  # takes ages, in which no other thread runs

    with pytest.raises(CaptureError, match=r"took longer than 0\.3 s"):
        capture(linear(batch=batch))
    assert not multiprocessing.active_children()


def test_a_worker_of_a_pool_may_capture() -> None:
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply(captured_samples) == 2


def captured_samples() -> int | None:
    return capture(linear()).samples


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    capture(linear())
    with pytest.raises(CaptureError):
        capture(linear(batch=lambda: os._exit(1)))
    assert not list(tmp_path.iterdir())


def test_a_fork_starts_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a capture in the caller's process has left, and the modes that the caller is in, are not the child's."""
    from foretell.capture.as_gpu import attention
    from foretell.capture.compiled import wishes

    monkeypatch.setattr(wishes._STATE, "wishes", [wishes._Wish(name="an older model", launched_by="code")])
    monkeypatch.setitem(attention.CALLS, attention.PREFERRED[0], 3)
    expected = capture(mlp()).content_hash
    with torch.no_grad():
        graph = capture(mlp())
    with torch.inference_mode():
        assert capture(mlp()).content_hash == graph.content_hash == expected
    assert not graph.caveats
    with pytest.raises(WorkloadError, match="nothing calls it"):
        capture(mlp(attention="flash2"))


def test_the_callers_torch_is_left_alone() -> None:
    before = torch.get_num_threads()
    capture(mlp(precision="amp-bf16"))
    assert torch.get_num_threads() == before
    x = torch.randn(2, 4, 5, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.cat([x, x.bfloat16()]).dtype == torch.float32
    assert torch.nn.functional.scaled_dot_product_attention(x, x, x).isfinite().all()


# A new interpreter instead of a fork.


def test_a_workload_reaches_a_new_interpreter_too(monkeypatch: pytest.MonkeyPatch) -> None:
    forked = capture(mlp())
    monkeypatch.setattr(child_module, "_may_fork", lambda: False)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]))
    assert capture(mlp()) == forked


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("FORETELL_CACHE", str(tmp_path / "cache"))
    (tmp_path / "mine.py").write_text(SOURCE)
    return str(tmp_path / "mine.py")


@pytest.mark.usefixtures("new_interpreter")
def test_a_source_is_imported_by_the_child(source: str, tmp_path: Path) -> None:
    graph = capture(f"{source}:noisy", {"batch": "3"}, cache=False)
    assert graph.samples == 3
    assert "mine" not in sys.modules
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("function", "error", "says"),
    [("nothing", WorkloadError, "not a foretell.Workload"), ("crash", CaptureError, "Its last words:.*goodbye")],
)
def test_a_source_that_fails_leaves_no_cache(
    source: str, tmp_path: Path, function: str, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=f"(?s){says}"):
        capture(f"{source}:{function}")
    assert not (tmp_path / "cache").exists()


SOURCE = """
import os
import signal
import sys

import torch

import foretell


def noisy(batch: int = 2):
    print("what a program prints is no answer")
    return foretell.Workload(
        name="noisy", model=lambda: torch.nn.Linear(4, 4), batch=lambda: torch.randn(batch, 4),
        loss=lambda model, x: model(x).mean(), optimizer=torch.optim.SGD,
    )


def nothing():
    return None


def crash():
    print("goodbye", file=sys.stderr, flush=True)
    os._exit(7)
"""


def test_an_error_of_ours_does_not_blame_the_users_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Foretell's own code fails: seen first where a setting was a number and not a text."""
    monkeypatch.setattr(Recorder, "graph", lambda self, **facts: texts_of(3))  # type: ignore[arg-type]
    with pytest.raises(
        CaptureError, match=r"Foretell itself failed with AttributeError.*Your code is not to blame"
    ) as caught:
        capture(linear())
    assert caught.value.exit_code == 1
    assert "In your code" not in str(caught.value)


def test_a_function_that_does_not_take_what_it_is_given_is_the_users() -> None:
    assert "failed in its own code with TypeError" in failing(loss=lambda model: model.weight.mean())
