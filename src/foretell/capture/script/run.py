"""Runs a script on the accelerator that is not there, and makes a graph of its step. Changes this process for good."""

from __future__ import annotations

import ast
import math
import os
import runpy
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import torch

from foretell.capture.as_gpu import attention, behave_as_gpu, let_fake_tensors_pass_as_real
from foretell.capture.as_gpu.eager import run_eagerly, was_compiled
from foretell.capture.dtypes import FLOATS
from foretell.capture.reads import is_library
from foretell.capture.script import cuda, data, deepspeed, kernels, moving, nvml, processes, stand_ins, wrappers
from foretell.capture.script.imports import once_imported
from foretell.capture.script.placement import Placement, ScriptRecorder
from foretell.capture.script.quiet import keep_quiet
from foretell.capture.script.readings import decisions
from foretell.capture.script.updates import Updates, Window
from foretell.capture.trace import optimizer_name, versions
from foretell.declared import DECLARED
from foretell.errors import SourceError, WorkloadError
from foretell.graph import Caveat, Graph
from foretell.graph.facts import StepFacts
from foretell.plans import PlanTemplate
from foretell.precision import HALVES, Precision
from foretell.sources.named.torchvision_ops import make_torchvision_importable, use_declared_operators
from foretell.sources.offline import refusal_in
from foretell.sources.scripts import Script

_INTEGERS: Final = (torch.int64, torch.int32, torch.int16, torch.uint8)


def trace_script(script: Script) -> Graph:
    path = Path(script.path)
    if not path.is_file():
        raise SourceError(f"no file '{path}'. Give the path of a training script.")
    return _Capture(script).graph()


class _Capture:
    def __init__(self, script: Script) -> None:
        self.script = script
        self.noted: dict[str, Any] = {}
        self.place = Placement()
        self.recorder = ScriptRecorder(self.place)
        self.updates = Updates(self.recorder, self.place, self._keep)
        self._kept: Graph | None = None

    def graph(self) -> Graph:
        self._pretend()
        try:
            with self.recorder:
                self._run()
                self.updates.end_of_script()
        except BaseException:
            if not self.recorder.finished:  # else it is Finished, or an error in what tidies up after it
                raise
        if self._kept is None:
            raise WorkloadError(self._why_nothing())
        return self._kept

    def _pretend(self) -> None:
        script, ranks = self.script, self.script.processes or 1
        make_torchvision_importable()
        behave_as_gpu()
        torch.set_num_threads(1)
        processes.set_environment(ranks, script.accelerator.per_node)
        moving.move_with(self.place)
        devices = min(ranks, script.accelerator.per_node)
        cuda.answer_as(script.accelerator, self.place, devices)
        nvml.stand_in(script.accelerator, devices)
        processes.stand_in(ranks, self.noted, self.recorder.pause)
        wrappers.recognise(self.noted)
        deepspeed.stand_in(self.noted)
        self.updates.noted = self.noted
        attention.AROUND_MATH.append(self.place.beside)
        run_eagerly()
        self._declare()
        kernels.stand_in(self.noted)
        data.load_inline(self.updates.begin, self.recorder.host)
        self.updates.follow()
        keep_quiet()
        if script.fake_data:
            stand_ins.stand_in(self.noted)
        once_imported("datasets.fingerprint", data.hash_anything)
        once_imported("torchvision", lambda module: use_declared_operators())
        once_imported("transformers", lambda module: let_fake_tensors_pass_as_real())

    def _declare(self) -> None:
        """What the user says of operations that cannot run here."""
        if self.script.opaque is None:
            return
        if not Path(self.script.opaque).is_file():
            raise SourceError(f"no file '{self.script.opaque}'. Give a Python file that calls foretell.opaque(…).")
        runpy.run_path(self.script.opaque)
        if not DECLARED:
            raise SourceError(
                f"{self.script.opaque} declares nothing. Let it call foretell.opaque('package.function', …)."
            )

    def _run(self) -> None:
        path = os.path.abspath(self.script.path)
        sys.argv = [self.script.path, *self.script.arguments]
        sys.path[0] = os.path.dirname(path)
        sys.dont_write_bytecode = True
        try:
            runpy.run_path(path, run_name="__main__")
        except Exception as error:
            if why := refusal_in(error):
                raise WorkloadError(self._why_refused(why, error)) from error
            if isinstance(error, FileNotFoundError):
                raise WorkloadError(self._why_missing(error)) from error
            raise
        except SystemExit as wish:
            if wish.code not in (None, 0) and self._kept is None:
                raise WorkloadError(
                    f"the script ended itself with exit code {wish.code!r} before its second update."
                ) from wish

    def _keep(self, window: Window) -> None:
        if not window.backwards or window.backwards[-1] == 0:
            return  # nothing but updates ran on the accelerator: it trains on the host
        samples, tokens = _batch_sizes(window)
        self._kept = self.recorder.graph(
            name=self.script.name,
            training=True,
            precision=self._precision(window),
            grad_accumulation=self.updates.micro_steps,
            samples=samples,
            tokens=tokens,
            caveats=tuple(self._caveats()),
            facts=self._facts(window),
            provenance=versions(),
        )

    def _facts(self, window: Window) -> StepFacts:
        parameters = {id(p): p.numel() for root in self.updates.roots for p in root.parameters()}
        optimizers = ", ".join(dict.fromkeys(map(optimizer_name, self.updates.inner or self.updates.updated)))
        return StepFacts(
            parameters=sum(parameters.values()),
            inputs=window.batch[0][0] if window.batch else None,
            optimizer=optimizers or None,
            plan=self._plan(),
            host=self.recorder.host.work,
        )

    def _precision(self, window: Window) -> Precision:
        return self.noted.get("mixed") or Precision.parse(self._named_precision(window))

    def _named_precision(self, window: Window) -> str:
        if window.autocast is not None:
            return "amp-fp16" if window.autocast is torch.float16 else "amp-bf16"
        numbers: dict[torch.dtype, int] = {}
        for parameter in (p for root in self.updates.roots for p in root.parameters()):
            numbers[parameter.dtype] = numbers.get(parameter.dtype, 0) + parameter.numel()
        most = max(numbers, key=lambda dtype: numbers[dtype], default=torch.float32)
        if FLOATS.get(most) in HALVES:
            return FLOATS[most]
        if torch.get_float32_matmul_precision() != "highest":
            return "tf32"
        return "torch-fp32" if torch.backends.cudnn.allow_tf32 else "fp32"

    def _plan(self) -> PlanTemplate:
        noted, ranks = self.noted, self.script.processes or 1
        settings: dict[str, Any] = {
            name: noted[name] for name in ("zero", "bucket_bytes", "data_parallel", "hybrid_shard") if name in noted
        }
        settings |= noted.get("plan", {})
        return PlanTemplate(source=self.script.path, by="script", settings=settings, devices=noted.get("world", ranks))

    def _caveats(self) -> Iterator[Caveat]:
        if was_compiled():
            yield Caveat(
                "compile-not-modelled", "torch.compile: fused kernels are not modelled yet; this is the eager step."
            )
        if (self.script.processes or 1) > 1 and not {"data_parallel", "zero"} & set(self.noted):
            yield Caveat(
                "script-on-one-device",
                "The script does not distribute its model: run as it is, each process would train alone. This is the step "
                "with its gradients averaged as DistributedDataParallel does.",
            )
        if self.noted.get("sync_batch_norm"):
            yield Caveat(
                "sync-batch-norm", "SyncBatchNorm: what the ranks exchange in each of them is not in the step."
            )
        yield from self.noted.get("caveats", ())
        if made := self.noted.get("stand_ins"):
            yield Caveat("fake-data", f"Stood in for, since they are not on this machine: {', '.join(made)}.")
        if known := self.noted.get("kernels"):
            yield Caveat(
                "kernels-stood-in",
                f"Kernels that cannot run here, as torch's own of the same kind: {', '.join(known)}.",
            )
        for assumption in (*self.place.values.assumptions, *filter(None, [decisions()])):
            yield Caveat("assumed-values", f"The step depends on values that only a run would know: {assumption}.")

    def _why_missing(self, error: FileNotFoundError) -> str:
        """Of a file that is not here: what to do about it."""
        what = os.fspath(error.filename) if isinstance(error.filename, str | os.PathLike) else str(error)
        said = f"{self.script.path} reads {what}{_where(error)}, which is not on this machine."
        if not self.script.fake_data:
            return f"{said} Give --fake-data to stand in for data sets and checkpoints, or put a small one of its kind there."
        return (
            f"{said} What is in it cannot be found out from the script: put a small one of its kind there, of a few rows or "
            "samples of the usual shapes, or say with the script's own arguments where one is."
        )

    def _why_refused(self, why: str, error: Exception) -> str:
        where = _where(error)
        stand_in = "" if self.script.fake_data else " Give --fake-data to stand in for data sets and checkpoints,"
        return (
            f"{self.script.path} asks for {why}{where}, and scripts run offline.{stand_in} or let the script read what is on this "
            "machine."
        )

    def _why_nothing(self) -> str:
        made = len(self.updates.sequence)
        if not made:
            return (
                f"{self.script.path} ran to its end without an update of a torch optimizer: there is no step to forecast. "
                + _functions(Path(self.script.path))
            )
        if made > 2:
            return (
                f"{self.script.path} made {made} updates, but no step of it ran on the accelerator: its model stays on the "
                "host. Move it there, for example with model.to('cuda')."
            )
        ended = f"{self.script.path} ran to its end after {made} update{'s' * (made > 1)}."
        if why := decisions():
            return (
                f"{ended} It may have decided to stop: {why}. Let it train for at least three steps whatever they are."
            )
        return f"{ended} Give it data for at least three steps."


def _where(error: Exception) -> str:
    """The line of the script, or of what it imports, that an error comes from."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not is_library(f.filename)]
    return f" in line {frames[-1].lineno} of {frames[-1].filename} ({frames[-1].line})" if frames else ""


def _functions(path: Path) -> str:
    """Functions of a file that say that they return a Workload: the only ones that are safe to suggest."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = [
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.returns and ast.unparse(node.returns).endswith("Workload")
    ]
    if found:
        return f"Name what makes a Workload: {' or '.join(repr(f'{path}:{name}') for name in found)}."
    return "Does it train when it is run with these arguments? Give them after --."


def _batch_sizes(window: Window) -> tuple[int | None, int | None]:
    """(samples, tokens) of what was moved to the device first, as of a Workload's batch."""
    samples = window.batch[0][0][0] if window.batch else None
    tokens = next((math.prod(shape) for shape, dtype in window.batch if len(shape) == 2 and dtype in _INTEGERS), None)
    return samples, tokens
