"""One run of a training script on an accelerator that is not there, recorded. It changes this process for good."""

from __future__ import annotations

import dataclasses
import os
import runpy
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch

from foretell.capture.compiled import wishes
from foretell.capture.dtypes import FLOATS
from foretell.capture.explain import traceback_of
from foretell.capture.script import advice
from foretell.capture.script.batch import Batch, batch_of
from foretell.capture.script.causes import own_words
from foretell.capture.script.consumed import consumed_in
from foretell.capture.script.ended import Ended, first_of
from foretell.capture.script.faults import fault_of
from foretell.capture.script.findings import DataParallel, Findings, StandIn
from foretell.capture.script.guesses import Contradicted, Guesses
from foretell.capture.script.loops import Loops
from foretell.capture.script.passes import Passes
from foretell.capture.script.placement import Placement, ScriptRecorder
from foretell.capture.script.readings import decisions
from foretell.capture.script.revised import revised
from foretell.capture.script.set_aside import FIRST_WORDS
from foretell.capture.script.unread import refuse_invented_batch, refuse_invented_sizes
from foretell.capture.script.updates import Updates
from foretell.capture.script.windows import Window
from foretell.capture.trace import optimizer_name, versions
from foretell.errors import WorkloadError
from foretell.graph import Caveat, Graph
from foretell.graph.facts import StepFacts
from foretell.graph.notes import Note
from foretell.precision import HALVES, Precision
from foretell.sources.configs.keys import Keys
from foretell.sources.scripts import Script


class Session:
    """What stand-ins share while a script runs: its tensors' places, its recorder, and what it was found to ask for."""

    def __init__(self, script: Script, guesses: Guesses | None = None) -> None:
        self.script = script
        self.guesses = guesses or Guesses()
        self.report: Callable[[str], None] = lambda text: None  # to whoever waits for the capture
        self.findings = Findings()
        self.place = Placement()
        self.recorder = ScriptRecorder(self.place)
        self.updates = Updates(self, self._take_step)
        self.passes = Passes(self)
        self.loops = Loops(self)
        self.started = advice.Started()
        self.at_end: list[Callable[[], None]] = []  # what Python would do once the script has ended
        self.processes: list[Any] = []  # that the script has started
        self.lacking: list[str] = []  # refusals of packages that are missing, should the script never train
        self.called: dict[str, str] = {}  # packages that are missing, and what is said of their first call
        self._autocasts = False
        self._graph: Graph | None = None

    @property
    def ranks(self) -> int:
        return self.script.processes or 1

    @property
    def devices(self) -> int:
        """Accelerators that the script's process sees."""
        return min(self.ranks, self.script.accelerator.per_node)

    @property
    def has_graph(self) -> bool:
        """A step was recorded."""
        return self._graph is not None

    def find(self, **changes: Any) -> None:
        """Put something into the findings."""
        self.findings = dataclasses.replace(self.findings, **changes)

    def find_name(self, field: Literal["collectives", "kernels"], name: str) -> None:
        self.find(**{field: tuple(dict.fromkeys((*getattr(self.findings, field), name)))})

    def stand_in(self, what: str, assumed: str = "", *, decides_size: bool = False) -> None:
        """Put down that something was stood in for, once."""
        found = StandIn(what=what, assumed=assumed, decides_size=decides_size)
        self.find(stand_ins=tuple(dict.fromkeys((*self.findings.stand_ins, found))))

    def find_caveats(self, *caveats: Caveat) -> None:
        self.find(unmodelled=tuple(dict.fromkeys((*self.findings.unmodelled, *caveats))))

    def find_wrapper(self, wrapper: Any, keys: Keys) -> None:
        """Of nested ones, the outermost and last decides; what any of them asks for and nobody models is a caveat."""
        self.find(wrapper=wrapper)
        self.find_caveats(*keys.caveats())

    def graph(self) -> Graph:
        """Run the script until its third step is recorded."""
        try:
            with self.recorder:
                self._run()
                self.updates.end_of_script()
        except BaseException:
            if not self.recorder.finished:  # else it is Finished, or an error in what tidies up after it
                raise
        if self._graph is None:
            self._say_first_words()
            made, started = self.updates.made, self.started.commands
            updates = len(self.updates.sequence)
            if (missing := [*self.called.values(), *self.lacking]) and not updates:
                raise WorkloadError(missing[0])
            raise WorkloadError(advice.on_no_step(self.script, updates, optimizers=made, started=started))
        return self._graph

    def _run(self) -> None:
        path = os.path.abspath(self.script.path)
        sys.argv = [self.script.path, *self.script.arguments]
        sys.path[0] = os.path.dirname(path) if self.script.module is None else os.getcwd()
        sys.dont_write_bytecode = True
        try:
            with self._ending():
                if self.script.module is None:
                    runpy.run_path(path, run_name="__main__")
                else:
                    runpy.run_module(self.script.module, run_name="__main__", alter_sys=True)
        except Exception as error:
            ended = Ended(
                script=self.script,
                error=first_of(error),
                stand_ins=self.findings.stand_ins,
                missing=tuple(self.called.values()),
            )
            if not self.recorder.finished and (shown := revised(ended, self.guesses)):
                raise Contradicted(shown) from error
            self._say_first_words(error)
            raise own_words(ended) or fault_of(ended).error(ended) from error
        except SystemExit as wish:
            if wish.code not in (None, 0) and self._graph is None and not self.recorder.finished:
                raise WorkloadError(advice.on_exit(self.script, wish)) from wish

    def _say_first_words(self, last: BaseException | None = None) -> None:
        """Where statements were set aside and it did not help: what the first of them said."""
        if self._graph is None and not self.recorder.finished and (words := self.guesses.known.get(FIRST_WORDS)):
            raise WorkloadError(words + (traceback_of(last) if last else "")) from last

    @contextmanager
    def _ending(self) -> Iterator[None]:
        """Whatever is left to do is done when the script ends well."""
        try:
            yield
        except SystemExit as wish:
            if wish.code not in (None, 0):
                raise
        for rest in self.at_end:
            rest()

    def _take_step(self, window: Window) -> None:
        """Make the graph of a step that was recorded."""
        if not window.learns:
            return  # nothing but updates ran on the accelerator: it trains on the host
        refuse_invented_sizes(self.updates.models.parameters(), self.guesses)
        assumptions = (*self.place.values.assumptions, *filter(None, [decisions()]))
        self.find(compiled=wishes.found(), assumptions=assumptions, asides=tuple(self.passes.found()))
        recorded = self.recorder.graph(
            name=self.script.name,
            training=True,
            precision=self.findings.precision(Precision.parse(self._named_precision(window))),
            grad_accumulation=self.updates.micro_steps,
            provenance=versions(),
        )
        if not recorded.ops:
            return  # as where nothing of it was on the accelerator when it began
        batch = batch_of(consumed_in(recorded, self.recorder.losses, self.recorder.resident), self.recorder.fetches)
        if isinstance(self.findings.wrapper, DataParallel):
            batch = batch.divided(self.findings.wrapper.replicas)
        refuse_invented_batch(batch.samples, self.guesses)
        self._graph = dataclasses.replace(
            recorded,
            samples=batch.samples,
            tokens=batch.tokens,
            caveats=(*self.findings.caveats(self.script), *batch.caveats()),
            facts=self._facts(batch, recorded.precision),
        )

    def _facts(self, batch: Batch, precision: Precision) -> StepFacts:
        models = self.updates.models
        optimizers = ", ".join(dict.fromkeys(map(optimizer_name, self.updates.inner or self.updates.updated)))
        return StepFacts(
            parameters=models.size,
            untrained=models.untrained or None,
            inputs=batch.inputs,
            optimizer=optimizers or None,
            plan=self.findings.plan(self.script),
            host=self.recorder.host.work,
            notes=(
                Note.brief("batch", batch.found, f"{batch.samples} samples"),
                Note.brief("precision", self._grounds(), precision.name),
                *self.findings.notes(),
            ),
        )

    def _grounds(self) -> str:
        """Why the step is of the precision that it is."""
        if self.findings.mixed is not None:
            return "a policy of a wrapper, or DeepSpeed's configuration"
        if self._autocasts:
            return "the script's autocast"
        return "what most of the parameters are in, and the units that torch is allowed"

    def _named_precision(self, window: Window) -> str:
        """What torch was set to compute in, policies of wrappers apart."""
        self._autocasts = window.autocast is not None
        if window.autocast is not None:
            return "amp-fp16" if window.autocast is torch.float16 else "amp-bf16"
        numbers: dict[torch.dtype, int] = {}
        for parameter in self.updates.models.parameters():
            numbers[parameter.dtype] = numbers.get(parameter.dtype, 0) + parameter.numel()
        most = max(numbers, key=lambda dtype: numbers[dtype], default=torch.float32)
        if FLOATS.get(most) in HALVES:
            return FLOATS[most]
        if torch.get_float32_matmul_precision() != "highest":
            return "tf32"
        return "torch-fp32" if torch.backends.cudnn.allow_tf32 else "fp32"
