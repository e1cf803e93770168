"""Forward passes that a script makes besides its steps, cut short: evaluation, samples that it draws, play in an environment.

A pass that was run twice with the same sizes, with no gradient wanted, is not run a third time: what comes out has the
shapes of before. So are micro-steps of a step that equal the ones before, where they are not recorded. What a step is
made of runs as it is.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.utils import _pytree as pytree

from foretell.capture.as_gpu.patches import replace
from foretell.capture.recorder import tensors_in
from foretell.capture.script.acting import Acting
from foretell.capture.script.by_hand import nodes_of
from foretell.capture.script.calls import Call, Result, call_of, extrapolated, make_again, result_of
from foretell.capture.script.findings import Aside

if TYPE_CHECKING:
    from foretell.capture.script.session import Session

_RUNS: Final = 2  # of a pass: the first may make what later ones find
_KEPT: Final = 8  # sizes of one kind of call
_OF_A_SAMPLER: Final = 64  # passes of one module inside of another's, without gradients: these are no part of a step
_IN_A_STEP: Final = 8  # passes without gradients of a trained module; more of them are no part of a step


@dataclass(slots=True, kw_only=True)
class _Past:
    """A pass that was run."""

    result: Result
    ops: int
    runs: int = 1


@dataclass(slots=True, kw_only=True)
class _Memory:
    """What is known of a module's passes."""

    kinds: dict[Any, dict[tuple[float, ...], _Past]] = field(default_factory=dict)

    def past(self, call: Call) -> _Past | None:
        return self.kinds.get(call.kind, {}).get(call.sizes)

    def keep(self, call: Call, past: _Past) -> None:
        sizes = self.kinds.setdefault(call.kind, {})
        sizes[call.sizes] = past
        if len(sizes) > _KEPT:
            del sizes[next(iter(sizes))]


class Passes:
    """Stands between a script and the modules that it calls itself."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._memory: WeakKeyDictionary[nn.Module, _Memory] = WeakKeyDictionary()
        self.quiet = 0  # passes that nothing was learnt from, so far
        self.learning = 0  # others
        self.evaluation = 0  # of what is trained, in evaluation mode
        self._rollouts: Counter[Any] = Counter()
        self._again: Counter[int] = Counter()  # passes of each module inside of the one that the script runs
        self._micro: deque[set[Any]] = deque()  # calls with gradients in each micro-step of this window
        self._replayed = False  # some of this micro-step
        self._came_out: set[int] = (
            set()
        )  # numbers of the autograd nodes of what modules have returned in this micro-step
        self._spans: list[tuple[int, int]] = []  # numbers of nodes that were made in modules
        self._may_replay = True
        self._acting = Acting(session.guesses)

    def install(self) -> None:
        run = nn.Module.__call__

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if self._session.updates.inside_module:
                return self._inner_pass(module, lambda: run(module, *args, **kwargs), args, kwargs)
            self._again.clear()
            if not any(True for _ in module.parameters()):
                return run(module, *args, **kwargs)
            if torch.is_grad_enabled():
                return self._learning(module, lambda: run(module, *args, **kwargs), args, kwargs)
            return self._quiet(module, lambda: run(module, *args, **kwargs), args, kwargs)

        replace(nn.Module, "__call__", call)

    # Without gradients

    def _quiet(self, module: nn.Module, run: Callable[[], Any], args: Any, kwargs: Any) -> Any:
        updates = self._session.updates
        self.quiet += 1
        updates.begin()
        trained = updates.trains(module)
        if trained and self._is_aside(module, args, kwargs):
            updates.step_aside()
        elif self._session.recorder.recording:
            return run()
        return self._cut_short(module, run, args, kwargs)

    def _inner_pass(self, module: nn.Module, run: Callable[[], Any], args: Any, kwargs: Any) -> Any:
        """Of what another module runs: cut short where that runs it again and again, as a sampler its net."""
        if torch.is_grad_enabled():
            return run()
        self._again[id(module)] += 1
        if self._session.recorder.recording:
            if self._again[id(module)] < _OF_A_SAMPLER or not any(True for _ in module.parameters()):
                return run()
            self.evaluation += 1
            self._session.updates.step_aside()
        return run() if self._again[id(module)] <= _IN_A_STEP else self._cut_short(module, run, args, kwargs)

    def _cut_short(self, module: nn.Module, run: Callable[[], Any], args: Any, kwargs: Any) -> Any:
        """Run it, or give what it would give where that is known."""
        recorder = self._session.recorder
        call = call_of(self._session.place, module, args, kwargs)
        memory = self._memory.setdefault(module, _Memory())
        known = None if call is None or _has_hooks(module) else self._known(memory, call)
        if known is not None:
            recorder.ops_on_device += known.ops
            return make_again(self._session.place, known.result)
        before = recorder.ops_on_device
        out = run()
        self._remember(memory, call, out, recorder.ops_on_device - before)
        return out

    def _is_aside(self, module: nn.Module, args: Any, kwargs: Any) -> bool:
        """Whether a pass of what is trained is no part of a step: in evaluation mode, or one of many."""
        if not module.training:
            self.evaluation += 1
            return True
        rollouts = self._session.updates.window.rollouts
        first = next((leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)), None)
        rollouts[id(module), () if first is None else tuple(first.shape)] += 1
        if rollouts.total() > _IN_A_STEP:
            self._rollouts = rollouts
            return True
        return False

    def leave_out(self, module: nn.Module, passes: int, shape: tuple[int, ...]) -> None:
        """Count passes that are made in one go, and hardly run."""
        updates = self._session.updates
        updates.begin()
        self.quiet += 1
        if module.training and updates.trains(module):
            updates.window.rollouts[id(module), shape] += passes
            self._rollouts = updates.window.rollouts
        else:
            self.evaluation += passes

    @property
    def acts(self) -> bool:
        """An agent acts, and nobody has learnt from it so far."""
        return self._acting.left_out > 0

    def found(self) -> Iterator[Aside]:
        """What is no part of a step, in passes of one module each."""
        if evaluation := self.evaluation + self._session.loops.left_out["evaluation"]:
            yield Aside(what="evaluation", passes=evaluation)
        if self._rollouts:
            (_, shape), passes = self._rollouts.most_common(1)[0]
            yield Aside(what="rollouts", passes=passes, inputs=shape)
        if batches := self._session.loops.left_out["preparation"]:
            yield Aside(what="preparation", passes=batches)

    def _known(self, memory: _Memory, call: Call) -> _Past | None:
        if (past := memory.past(call)) is not None:
            return past if past.runs >= _RUNS else None
        pasts = memory.kinds.get(call.kind, {})
        found = extrapolated([(sizes, past.result) for sizes, past in pasts.items()], call.sizes)
        return None if found is None else _Past(result=found, ops=next(iter(pasts.values())).ops)

    def _remember(self, memory: _Memory, call: Call | None, out: Any, ops: int) -> None:
        if call is None or (result := result_of(self._session.place, out)) is None:
            return
        past = memory.past(call)
        memory.keep(call, _Past(result=result, ops=ops, runs=1 if past is None else past.runs + 1))

    # With them

    def _learning(self, module: nn.Module, run: Callable[[], Any], args: Any, kwargs: Any) -> Any:
        session = self._session
        self.learning += module.training
        self.quiet += not module.training
        session.updates.begin()
        call = call_of(session.place, module, args, kwargs)
        if call is None or session.updates.updating:
            return run()
        if not session.recorder.recording and self._acts(module, call):
            self._acting.left_out += 1
            return make_again(
                session.place, self._memory[module].kinds[call.kind][call.sizes].result, self._acting.reached
            )
        out = run() if call.learns else self._micro_step(module, run, call)
        if not session.recorder.recording:
            self._note(module, call, out)
        return out

    def _acts(self, module: nn.Module, call: Call) -> bool:
        """Whether nothing is learnt from it, as nothing was from its like."""
        if not self._acting.is_dropped(module, (call.kind, call.sizes, call.learns)):
            return False
        past = self._memory.get(module, _Memory()).past(call)
        return past is not None and past.result.plain and not _has_hooks(module)

    def _note(self, module: nn.Module, call: Call, out: Any) -> None:
        if not self._session.updates.window.backwards:
            self._acting.ran(module, (call.kind, call.sizes, call.learns), out)
            if call.learns:
                self._remember(self._memory.setdefault(module, _Memory()), call, out, 0)

    def _micro_step(self, module: nn.Module, run: Callable[[], Any], call: Call) -> Any:
        session = self._session
        micro = len(session.updates.window.backwards)
        if self._may_replay and micro >= _RUNS and not session.recorder.recording and self._was_in_all(module, call):
            past = self._memory[module].past(call)
            if past is not None and past.result.plain and not _has_hooks(module):
                self._replayed = True
                return make_again(session.place, past.result)
        start = torch._C._autograd._get_sequence_nr()
        out = run()
        if micro < _RUNS:
            self._spans.append((start, torch._C._autograd._get_sequence_nr()))
            while len(self._micro) <= micro:
                self._micro.append(set())
            if _leaves_something(module):
                return out
            self._micro[micro].add((module, call.kind, call.sizes))
            self._remember(self._memory.setdefault(module, _Memory()), call, out, 0)
            nodes = (t.grad_fn for t in pytree.tree_leaves(out) if isinstance(t, torch.Tensor))
            self._came_out.update(node._sequence_nr() for node in nodes if node is not None)
        return out

    def before_backward(self, losses: Any) -> None:
        """Of a step that goes past what its modules return, as by a loss that they keep, no micro-step is left out."""
        self._acting.forget()
        if len(self._session.updates.window.backwards) < _RUNS:
            nodes = (node for loss in tensors_in(losses) for node in nodes_of(loss, self._came_out))
            self._may_replay = self._may_replay and not any(map(self._is_inside, nodes))
        self._came_out.clear()
        self._spans.clear()

    def _is_inside(self, node: Any) -> bool:
        """Whether an autograd node is a parameter's, or was made while a module ran."""
        number = node._sequence_nr()
        return hasattr(node, "variable") or any(start <= number < end for start, end in self._spans)

    def _was_in_all(self, module: nn.Module, call: Call) -> bool:
        key = (module, call.kind, call.sizes)
        return len(self._micro) == _RUNS and all(key in calls for calls in self._micro)

    def end_micro_step(self) -> bool:
        """Whether some of it was not run."""
        replayed, self._replayed = self._replayed, False
        return replayed

    def new_window(self) -> None:
        self._micro.clear()
        self._came_out.clear()
        self._spans.clear()
        self._replayed, self._may_replay = False, True


def _leaves_something(module: nn.Module) -> bool:
    """Whether a pass has put what it computed into a module, where the script takes it from, as a loss."""
    kept = (value for part in module.modules() for value in list(vars(part).values()))
    inner = (v for value in kept for v in (value if isinstance(value, list | tuple) else (value,)))
    return any(isinstance(value, torch.Tensor) and value.grad_fn is not None for value in inner)


def _has_hooks(module: nn.Module) -> bool:
    """Somebody wants to see what happens inside."""
    return any(
        not (_is_of_torch(hook) or _only_wants_gradients(hook))
        for m in module.modules()
        for hooks in (m._forward_hooks, m._forward_pre_hooks, m._backward_hooks)
        for hook in hooks.values()
    )


def _is_of_torch(hook: Any) -> bool:
    """One that computes, as of normalised weights, and keeps nothing."""
    name = getattr(hook, "__module__", None) or type(hook).__module__
    return name.startswith(("torch.", "foretell."))


def _only_wants_gradients(hook: Any) -> bool:
    """One that lets gradients reach what a module returns, as adapters under checkpointing need, and looks at nothing."""
    code = getattr(hook, "__code__", None)
    return code is not None and set(code.co_names) == {"requires_grad_"}
