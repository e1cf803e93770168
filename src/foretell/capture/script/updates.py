"""Where a step begins and ends: the updates of a script's optimizers, and what is recorded between two of them.

A step ends with an update. With several optimizers it ends with the last of a sequence that repeats: a discriminator's
and a generator's, five critics and an actor. The next begins when a batch is fetched or moved to the accelerator, or a
module is called, whichever comes first: averages and scales that are updated after the optimizer belong to its step.
"""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils import _pytree as pytree

from foretell.capture.as_gpu.patches import replace
from foretell.capture.script.by_hand import ByHand
from foretell.capture.script.models import Models
from foretell.capture.script.placement import Finished
from foretell.capture.script.windows import Rollout, Window, micro_steps_in, period_of
from foretell.capture.script.wrapped import unwrapped
from foretell.capture.trace import host_state
from foretell.graph import Caveat
from foretell.sources.master_weights import gradient_of
from foretell.units import Seconds

if TYPE_CHECKING:
    from foretell.capture.script.session import Session

_WARM: Final = 2  # periods that are run before the one that is recorded
_PATIENCE: Final = 64  # updates after which an optimizer that has made none is taken for unused,
_LITTLE_PATIENCE: Final = 8  # or these, where each takes long
_SLOW: Final[Seconds] = 100.0  # of the processor, after which the second step will do in place of the third


class Updates:
    """Follows the script to its third step, recording it; `on_recorded` hands out the second, then the third."""

    def __init__(self, session: Session, on_recorded: Callable[[Window], None]) -> None:
        self._session, self._on_recorded = session, on_recorded
        self.recorder, self.place = session.recorder, session.place
        self.optimizers: WeakSet[Optimizer] = WeakSet()
        self.made = 0  # optimizers, whatever became of them
        self.sequence: list[int] = []  # of optimizers, in order of their updates
        self.models = Models()
        self.recorded = 0
        self.micro_steps = 1  # of the last window, if they are alike
        self.inner: WeakSet[Optimizer] = WeakSet()  # that others call in their update
        self._numbers: WeakKeyDictionary[Optimizer, int] = WeakKeyDictionary()
        self._resting = False  # micro-steps that equal the one before are not recorded
        self._ended = False  # an update was made, and nothing has begun since
        self._around: list[str] = []
        self._updating: Optimizer | None = None
        self._stack: list[str] = []
        self._names: dict[int, dict[nn.Module, str]] = {}
        self.window = Window(backwards=[])
        self._aside = False  # passes that are no part of the step are made
        self._interrupted = False  # and it was being recorded
        self.by_hand = ByHand(self._updated_by_hand)
        self._trained: tuple[tuple[int, int], frozenset[int]] = ((0, 0), frozenset())

    def follow(self) -> None:
        register_optimizer_step_pre_hook(self._before_update)
        register_optimizer_step_post_hook(self._after_update)
        nn.modules.module.register_module_forward_pre_hook(self._enter_module)
        nn.modules.module.register_module_forward_hook(self._leave_module, always_call=True)
        made = Optimizer.__init__

        def make(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
            made(optimizer, *args, **kwargs)
            self.optimizers.add(optimizer)
            self.made += 1

        replace(Optimizer, "__init__", make)
        run = torch.autograd.backward

        def backward(*args: Any, **kwargs: Any) -> None:
            self.begin()
            self._session.passes.learning += 1
            losses = args[:1] or (kwargs.get("tensors"),)
            self.recorder.losing(losses)
            self._before_backward(losses)
            run(*args, **kwargs)
            for copies in self._session.findings.copies:
                copies.made.clear()
                copies.watch = self._take_copy
            self.window.backwards.append(self.recorder.ops_on_device)
            self.window.replayed.append(self._session.passes.end_micro_step())
            self._after_backward(len(self.window.backwards))

        replace(torch.autograd, "backward", backward)
        differentiate = torch.autograd.grad

        def grad(*args: Any, **kwargs: Any) -> Any:
            self.recorder.losing(args[:1] or (kwargs.get("outputs"),))
            made = differentiate(*args, **kwargs)
            self.window.gradients = self.recorder.ops_on_device
            return made

        replace(torch.autograd, "grad", grad)
        enter: Callable[[torch.autocast], Any] = torch.autocast.__enter__

        def casting(autocast: torch.autocast) -> Any:  # also where a library wraps it around a module's own forward
            entered = enter(autocast)
            if torch.is_autocast_enabled("cpu"):
                self.window.autocast = torch.get_autocast_dtype("cpu")
            return entered

        replace(torch.autocast, "__enter__", casting)
        self.place.arriving, self.place.arrived = self.begin, self._take_batch
        self.place.sent, self.place.drawing, self.place.drawn = self._send, self._draw, self._take_drawn
        self.place.leaving = self.recorder.leaving

        self._hear_of_clearing()

    def _hear_of_clearing(self) -> None:
        """Gradients that are cleared before they are used, as those of an attack, are not accumulated."""
        for owner in (Optimizer, nn.Module):
            clear: Any = owner.zero_grad

            def zero_grad(own: Any, *args: Any, clear: Any = clear, **kwargs: Any) -> Any:
                if not self._ended and self._updating is None and self.window.backwards:
                    self.window.cleared = True
                return clear(own, *args, **kwargs)

            replace(owner, "zero_grad", functools.wraps(clear)(zero_grad))

    # What begins a step

    def begin(self) -> None:
        """A batch is fetched or moved, or a module called."""
        if self._ended:
            self._ended = False
            self.end_step()
        if self._aside and not self._stack:
            self._come_back()

    # What is no part of one

    @property
    def inside_module(self) -> bool:
        return bool(self._stack)

    @property
    def updating(self) -> bool:
        return self._updating is not None

    def trains(self, module: nn.Module) -> bool:
        """Whether an optimizer updates something of it."""
        groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]
        known = (len(groups), sum(len(group["params"]) for group in groups))
        if self._trained[0] != known:
            self._trained = known, frozenset(id(p) for group in groups for p in group["params"])
        return any(id(p) in self._trained[1] for p in module.parameters())

    def step_aside(self) -> None:
        """A pass is made that is no part of a step, as in an evaluation: until something else begins, nothing is recorded."""
        self._aside = True
        self._interrupted = self._interrupted or self.recorder.recording
        self.recorder.recording = False

    @contextmanager
    def aside(self) -> Iterator[None]:
        """All that happens meanwhile is no part of a step."""
        self.begin()
        self.step_aside()
        self._stack.append(self.recorder.module)
        try:
            yield
        finally:
            self.recorder.module = self._stack.pop()

    def _come_back(self) -> None:
        """What came before in this window is dropped, unless the step was under way."""
        self._aside = False
        recording, self._interrupted = self._interrupted, False
        window = self.window
        if window.backwards or window.updates < len(self.sequence):
            self.recorder.recording = recording
            return
        self._new_window(window.rollouts)
        if recording:
            self._start()

    def _new_window(self, rollouts: Counter[Rollout] | None = None) -> None:
        self.window = Window(backwards=[], updates=len(self.sequence), rollouts=rollouts or Counter())
        self._session.passes.new_window()

    def _take_batch(self, tensor: torch.Tensor) -> None:
        if self.recorder.recording:
            self.recorder.mark([tensor], "input")

    def _draw(self) -> None:
        """Random numbers made on the device, outside of modules and updates, are a batch in place of a real one."""
        if not self._stack and self._updating is None:
            self.begin()

    def _take_drawn(self, tensor: torch.Tensor) -> None:
        if not self._stack and self._updating is None and tensor.numel() and self.recorder.recording:
            self.recorder.mark([tensor], "input")

    def _send(self, tensor: torch.Tensor, non_blocking: bool) -> None:
        if self.recorder.recording:
            self.recorder.host.send(tensor, self.recorder.times, non_blocking=non_blocking)

    @property
    def updated(self) -> list[Optimizer]:
        """The optimizers that make updates, in the order of their first."""
        return sorted(self._numbers, key=lambda optimizer: self._numbers[optimizer])

    def _take_copy(self, copy: torch.Tensor) -> None:
        if self.recorder.recording:
            self.recorder.mark([copy], "parameter")

    def _enter_module(self, module: nn.Module, args: Any) -> None:
        if not self._stack and any(True for _ in module.parameters()):
            if not self._aside:  # else this pass itself is no part of the step
                self.begin()
            if self._updating is not None:  # in a closure that the optimizer calls
                self.recorder.phase, self.recorder.updating = "forward", False
            self.models.call(module)
        if torch.is_autocast_enabled("cpu"):
            self.window.autocast = torch.get_autocast_dtype("cpu")
        self._stack.append(self.recorder.module)
        self.recorder.module = self._name(module)

    def _leave_module(self, module: nn.Module, args: Any, out: Any) -> None:
        self.recorder.module = self._stack.pop() if self._stack else ""

    def _name(self, module: nn.Module) -> str:
        if not self._stack or len(self._stack) == 1:
            for root in self.models.roots:
                if root is module and id(root) not in self._names:
                    inner = unwrapped(root)
                    self._names[id(root)] = {m: name for name, m in inner.named_modules()}
        for names in self._names.values():
            if module in names:
                return names[module]
        return self.recorder.module

    # What ends one

    def _before_update(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._around.append(self.recorder.phase)
        self._update(optimizer)

    def _update(self, optimizer: Optimizer) -> None:
        """Gradients are there, and the update begins: at once, or after a closure has made them."""
        recorder = self.recorder
        self._updating = optimizer
        recorder.phase, recorder.times, recorder.updating = "optimizer", 1, True
        recorder.recording, self._resting = recorder.recording or self._resting, False
        if recorder.recording:
            for parameter in (p for group in optimizer.param_groups for p in group["params"]):
                if (gradient := gradient_of(parameter)) is not None:
                    recorder.pair(parameter, gradient)
                    self.models.update(parameter)
            self._mark_state(optimizer)

    def _before_backward(self, losses: Any) -> None:
        """Without an optimizer, what will be updated is found from the loss."""
        self._session.passes.before_backward(losses)
        wanted = not self.optimizers
        self.recorder.on_write = self.by_hand.wrote if wanted else None
        if wanted:
            self.by_hand.before_backward(losses)

    def _updated_by_hand(self) -> None:
        recorder = self.recorder
        recorder.times, recorder.recording, self._resting = 1, recorder.recording or self._resting, False
        for parameter in self.by_hand.parameters if recorder.recording else ():
            if (gradient := gradient_of(parameter)) is not None:
                recorder.pair(parameter, gradient)
                self.models.update(parameter)
        self.sequence.append(0)
        self._ended = True

    def _after_update(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self.recorder.phase, self.recorder.updating, self._updating = self._around.pop(), bool(self._around), None
        if self._around:  # it is part of another's update
            self.inner.add(optimizer)
            return
        self.optimizers.add(optimizer)
        self.sequence.append(self._numbers.setdefault(optimizer, len(self._numbers)))
        self._ended = True

    def end_step(self) -> None:
        """At the start of the next step, or at the end of the script."""
        recorder, window = self.recorder, self.window
        if window.backwards and not recorder.seen and not self.place.everywhere:
            self._bring_to_accelerator()
            return
        self._new_window()
        period = self._period()
        done = len(self.sequence)
        self.micro_steps = micro_steps_in(window) if period == 1 else 1
        if recorder.recording:
            recorder.recording = False
            if period and done % period == 0:
                self.recorded = done // period
                recorder.end_with_update()
                self._on_recorded(window)
                if self.recorded > _WARM or (self._session.has_graph and time.process_time() > _SLOW):
                    recorder.finished = True
                    raise Finished
            else:
                recorder.recording = True
                self.window = window
                return
        if period and done % period == 0:
            self._start()

    def _bring_to_accelerator(self) -> None:
        """The script has made a step, and nothing of it was on the accelerator: go on as if it had moved its model."""
        self.place.everywhere = True
        for root in self.models.roots:
            root.to("cuda")
        self.sequence.clear()
        self._numbers.clear()
        self._new_window()
        self._session.find_caveats(
            Caveat(
                "script-on-host",
                "The script leaves its model on the host: this is its step with the model and its batches on the accelerator.",
            )
        )

    def end_of_script(self) -> None:
        if self._ended and self.recorder.recording:
            self._ended = False
            self.end_step()

    def _period(self) -> int | None:
        """After how many updates the optimizers' order repeats; None while that cannot be said yet."""
        waiting = [
            o
            for o in self.optimizers
            if o not in self._numbers and o not in self.inner and o is not self._session.findings.optimizer
        ]
        patience = _PATIENCE if time.process_time() < _SLOW else _LITTLE_PATIENCE
        if waiting and len(self.sequence) < patience:
            return None
        if len(self._numbers) == 1 or (not self._numbers and self.by_hand.updates):
            return 1
        return period_of(self.sequence)

    def _start(self) -> None:
        recorder = self.recorder
        recorder.forget()
        self.models.begin()
        for root in self.models.roots:
            recorder.mark(root.parameters(), "parameter")
            recorder.mark(root.buffers(), "parameter")
        for optimizer in self.optimizers:
            recorder.mark((p for group in optimizer.param_groups for p in group["params"]), "parameter")
            self._mark_state(optimizer)
            for p in (p for group in optimizer.param_groups for p in group["params"] if p.grad is not None):
                recorder.mark([p.grad], "gradient")
        recorder.mark(self.by_hand.parameters, "parameter")
        recorder.phase, recorder.times, recorder.module = "forward", 1, ""
        recorder.recording = True
        recorder.ops_on_device = 0
        recorder.host.reset()

    def _mark_state(self, optimizer: Optimizer) -> None:
        self.recorder.mark(host_state(optimizer), "host")
        self.recorder.mark(pytree.tree_leaves(list(optimizer.state.values())), "optimizer")

    def _after_backward(self, done: int) -> None:
        """Of micro-steps that are alike the first and the second are recorded, as a Workload's are."""
        recorder, expected = self.recorder, self.micro_steps
        if self._updating is not None:
            self._update(self._updating)
            return
        if expected == 1 or not (recorder.recording or self._resting):
            return
        recorder.times = expected - 1 if done < expected else 1
        self._resting = 2 <= done < expected
        recorder.recording = not self._resting
