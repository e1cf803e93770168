"""The recorder: a dispatch mode that writes down every op of a step and the lifetime of every storage.

It works on fake and on real tensors alike, sees forward, backward and optimizer in one pass, and keeps no
tensor alive: what it knows of a storage is a weak reference whose death is the storage's release.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from typing import Any, Protocol

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from foretell.graph import Graph, Input, Layout, Op, Signature, Storage, Tensor, Value

_DEVICE_QUERY = torch.ops.prim.device.default
_MAKES_CONSTANT = torch.ops.aten.lift_fresh.default
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
_ALIVE = -1


# Under any dispatch mode, autograd's formulas avoid writing in place and copy instead. The gradient they copy is one
# they have just made, so here the ops are run as they are without a mode: in place.
_IN_PLACE_IN_BACKWARD: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.index_put.default: lambda self, indices, values, accumulate=False: (
        torch.ops.aten._index_put_impl_.default(self, indices, values, accumulate, True)
    ),
    torch.ops.aten.index_add.default: torch.ops.aten.index_add_.default,
    torch.ops.aten.scatter_add.default: torch.ops.aten.scatter_add_.default,
}


class Execution(Protocol):
    """How ops are run while they are recorded, where running them plainly will not do."""

    def rewrite(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], Any] | None: ...

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...


class Recorder(TorchDispatchMode):
    def __init__(self, execution: Execution | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recording = False
        self.phase = "forward"  # of ops outside the backward pass
        self.times = 1
        self.module = ""
        self._execution = execution
        self._ops: list[Op] = []
        self._tensors: dict[tuple[Any, ...], int] = {}
        self._layouts: dict[tuple[Any, ...], Layout] = {}
        self._signatures: dict[tuple[Any, ...], Signature] = {}
        self._storages: list[list[Any]] = []  # nbytes, role, born, freed
        self._live: dict[int, int] = {}  # storage address → its number
        self._watches: dict[int, weakref.ref[Any]] = {}
        self._module_of_node: dict[int, str] = {}  # autograd sequence number → module of the forward op
        self._module_of_leaf: dict[int, str] = {}  # storage address of a parameter → module that reads it first
        self._roles: dict[int, str] = {}  # storage address → role, for what was there before the step
        self._gradients: dict[int, int] = {}  # storage of a parameter → storage of its gradient
        self.marks: tuple[tuple[str, str], ...] = ()  # arguments that all ops have that run now

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here; the guard against it would be paid at every op

    # The dispatcher calls this for every op below autograd.
    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is _DEVICE_QUERY:  # asked thousands of times; a fake tensor knows the answer
            return getattr(args[0], "fake_device", None) or func(*args, **kwargs)
        if torch.is_inference_mode_enabled() and _is_composite(func):
            with self:  # outside inference, autograd has taken such ops apart already, with this same kernel
                return func._op_dk(_COMPOSITE, *args, **kwargs)
        if func in _IN_PLACE_IN_BACKWARD and torch._C._current_graph_task_id() != -1:
            with self:
                return _IN_PLACE_IN_BACKWARD[func](*args, **kwargs)
        execution = self._execution
        if execution is None:
            out = func(*args, **kwargs)
        elif (rewritten := execution.rewrite(func, args, kwargs)) is not None:
            with self:
                return rewritten()
        else:
            out = execution.run(func, args, kwargs)
        if self.recording and func.namespace != "profiler":
            self._record(func, args, kwargs, out)
        return out

    def _record(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        in_backward = torch._C._current_graph_task_id() != -1
        inputs: list[int] = []
        layouts: list[Layout] = []

        def encode(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                number, layout = self._tensor(value, born=-1)
                if not in_backward and value.requires_grad and _is_leaf(value):
                    self._module_of_leaf.setdefault(value.untyped_storage()._cdata, self.module)
                inputs.append(number)
                layouts.append(layout)
                return Input(len(inputs) - 1)
            if isinstance(value, list | tuple):
                return tuple([encode(item) for item in value])
            if value is None or isinstance(value, bool | int | float | str):
                return value
            if isinstance(value, torch.UntypedStorage):  # its text would be every byte, fetched one by one
                return "storage"
            return str(value)

        if func is _MAKES_CONSTANT:  # its argument is the program's own list of numbers
            args = ()
        names, written = _schema(func)
        encoded = [(names[i], encode(value)) for i, value in enumerate(args)]
        if kwargs:
            encoded += [(name, encode(value)) for name, value in kwargs.items()]
        encoded += self.marks
        position = len(self._ops)
        outputs: list[int] = []
        output_layouts: list[Layout] = []
        for tensor in tensors_in(out):
            number, layout = self._tensor(tensor, born=position)
            outputs.append(number)
            output_layouts.append(layout)
        key = (func, tuple(encoded), tuple(layouts), tuple(output_layouts))
        signature = self._signatures.get(key)
        if signature is None:
            mutates = tuple(sorted({i for name, value in encoded if name in written for i in _inputs_in(value)}))
            signature = Signature(str(func), key[2], key[3], key[1], mutates)
            self._signatures[key] = signature
        if in_backward:
            module, phase = self._module_in_backward(), "backward"
        else:
            # The autograd node of a forward op is made just before the op is dispatched.
            module = self.module
            self._module_of_node.setdefault(torch._C._autograd._get_sequence_nr() - 1, module)
            phase = self.phase
        self._ops.append(Op(signature, phase, module, tuple(inputs), tuple(outputs), self.times))

    def _module_in_backward(self) -> str:
        node = torch._C._current_autograd_node()
        if self.module or node is None:
            return self.module
        leaf = getattr(node, "variable", None)  # of a node that adds up a gradient, which no forward op has made
        if leaf is not None:
            return self._module_of_leaf.get(leaf.untyped_storage()._cdata, "")
        return self._module_of_node.get(node._sequence_nr(), "")

    def _tensor(self, tensor: torch.Tensor, born: int) -> tuple[int, Layout]:
        tensor = stored(tensor)
        shape = tuple(tensor.shape)
        strides = tensor.stride() if tensor.layout is torch.strided else (0,) * len(shape)
        key = (shape, strides, tensor.dtype)
        layout = self._layouts.get(key)
        if layout is None:
            dtype = str(tensor.dtype).removeprefix("torch.")
            layout = self._layouts[key] = Layout(tuple(map(int, shape)), tuple(map(int, strides)), dtype)
        storage = self._storage(tensor, born)
        tensor_key = (key, storage, tensor.storage_offset() if tensor.layout is torch.strided else 0)
        return self._tensors.setdefault(tensor_key, len(self._tensors)), layout

    def _storage(self, tensor: torch.Tensor, born: int) -> int:
        storage = tensor.untyped_storage()
        address = storage._cdata
        number = self._live.get(address)
        if number is None:
            number = self._live[address] = len(self._storages)
            self._storages.append([storage.nbytes(), self._roles.get(address), born, _ALIVE])
            self._watches[address] = weakref.ref(storage, partial(self._released, address))
        elif (nbytes := storage.nbytes()) > self._storages[number][0]:  # of `resize_`
            self._storages[number][0] = nbytes
        return number

    def _released(self, address: int, _: Any = None) -> None:
        self._watches.pop(address, None)
        number = self._live.pop(address, None)
        self._roles.pop(address, None)
        if number is not None:
            self._storages[number][3] = max(len(self._ops) - 1, 0)

    def mark(self, tensors: Iterable[Any], role: str) -> None:
        """Set what storages are for; those that exist before the step are counted even if no op touches them."""
        for tensor in map(stored, tensors):
            if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
                continue
            self._roles.setdefault(tensor.untyped_storage()._cdata, role)
            number = self._storage(tensor, born=-1)
            if self._storages[number][1] is None:
                self._storages[number][1] = role

    def pair(self, parameter: torch.Tensor, gradient: torch.Tensor) -> None:
        """Record which gradient is a parameter's own."""
        if parameter.layout is torch.strided and self._roles.get(parameter.untyped_storage()._cdata) == "optimizer":
            return  # a copy that is updated
        gradient = stored(gradient)
        self.mark([gradient], "gradient")
        if torch.strided is parameter.layout is gradient.layout:
            self._gradients[self._storage(parameter, born=-1)] = self._storage(gradient, born=-1)

    @contextmanager
    def modules_of(self, model: torch.nn.Module) -> Iterator[None]:
        """Name the module that each op runs in."""
        names = {module: name for name, module in model.named_modules()}
        stack: list[str] = []

        def enter(module: torch.nn.Module, args: Any) -> None:
            stack.append(self.module)
            self.module = names.get(module, self.module)

        def leave(module: torch.nn.Module, args: Any, out: Any) -> None:
            self.module = stack.pop() if stack else ""

        handles = [
            torch.nn.modules.module.register_module_forward_pre_hook(enter),
            torch.nn.modules.module.register_module_forward_hook(leave, always_call=True),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def left_nothing_behind(self) -> bool:
        """Whether all that the step made is gone or known: no cached mask, no table made on first use."""
        return all(role or born < 0 or freed != _ALIVE for _, role, born, freed in self._storages)

    def end_with_update(self) -> None:
        """What follows the last backward pass belongs to the update: clipping, averages, scales."""
        last = next((i for i in reversed(range(len(self._ops))) if self._ops[i].phase == "backward"), len(self._ops))
        tail = self._ops[last + 1 :]
        self._ops[last + 1 :] = [replace(op, phase="optimizer") if op.phase == "forward" else op for op in tail]

    def forget(self) -> None:
        """Drop the ops and tensors recorded so far; storages that are alive stay watched under fresh numbers."""
        self._ops.clear()
        self._tensors.clear()
        self._storages.clear()
        self._live.clear()
        self._watches.clear()
        self._roles.clear()
        self._gradients.clear()
        self._module_of_node.clear()
        self._module_of_leaf.clear()

    def graph(self, **facts: Any) -> Graph:
        """What was recorded; `facts` are the other fields of the graph."""
        end = len(self._ops)
        phases = [op.phase for op in self._ops]
        own = set(self._gradients.values())
        storages = tuple(
            Storage(nbytes, "temporary", 0, until)
            if role == "gradient" and born < 0 and until < end and number not in own
            else Storage(nbytes, role or _role(phases, born, min(until, end - 1)), born, until)
            for number, (nbytes, role, born, freed) in enumerate(self._storages)
            for until in (end if freed == _ALIVE else freed,)
        )  # a gradient of the step before that this one drops, to make its own, does not rest in memory
        layouts = self._layouts
        tensors = tuple(Tensor(layouts[key], storage, int(offset)) for key, storage, offset in self._tensors)
        made: dict[str, Any] = {"ops": tuple(self._ops), "tensors": tensors, "storages": storages}
        # What a step makes, updates and forgets is no parameter of the model.
        gradients = {p: g for p, g in self._gradients.items() if storages[p].role == "parameter"}
        return Graph(**made, gradients=gradients, **facts)


def stored(value: Any) -> Any:
    """What a tensor has in memory: a sparse one the rows that it holds. Their numbers are little beside them."""
    if isinstance(value, torch.Tensor) and value.layout is torch.sparse_coo:
        return value._values()
    return value


def _role(phases: list[str], born: int, freed: int) -> str:
    if born < 0:
        return "parameter"  # model state that is neither parameter nor buffer: cached masks, rotary tables
    return "activation" if phases[born] == "forward" and phases[freed] != "forward" else "temporary"


@cache
def _is_composite(func: Any) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")


@cache
def _schema(func: Any) -> tuple[tuple[str, ...], frozenset[str]]:
    """Names of an operator's arguments, and which of them it writes."""
    arguments = func._schema.arguments
    written = frozenset(a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write)
    return tuple(a.name for a in arguments), written


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)


def _inputs_in(value: Value) -> Iterator[int]:
    if isinstance(value, Input):
        yield value.index
    elif isinstance(value, tuple):
        for item in value:
            yield from _inputs_in(item)


def _is_leaf(tensor: torch.Tensor) -> bool:
    """As torch says; of a part of a parameter that an update writes without gradients, it refuses to."""
    try:
        return tensor.is_leaf
    except RuntimeError:
        return False
