"""What the allocator does in a step, as torch records it (`torch.cuda.memory._snapshot`): events, and segments at the end.

Frames are what a step has in place of Python code: the op, then the modules around it, inside out, and its phase.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

from foretell.graph import Graph, Op
from foretell.graph.modules import prefixes
from foretell.simulate.allocator import Block
from foretell.simulate.memory import Replay, Retained
from foretell.units import Bytes, Seconds

_FIRST_ADDRESS: Final = 1 << 40  # so that none is 0, which stands for nothing
_ALLOCATED, _FREE = "active_allocated", "inactive"
Frames = list[dict[str, Any]]


class Recorder(Replay):
    """A replay that writes down what is allocated and released, as one device's part of a snapshot."""

    def __init__(
        self,
        graph: Graph,
        temporaries: Sequence[Bytes],
        kept_workspace: Sequence[tuple[int, Bytes]],
        persistent: Mapping[str, Bytes],
        retained: Sequence[Retained],
        ends: Sequence[Seconds],
    ) -> None:
        self.graph, self.ends = graph, ends  # of ops, on the device's clock
        self.events: list[dict[str, Any]] = []
        self.live: dict[int, tuple[Block, Bytes, Frames]] = {}  # by address
        self.now = 0.0
        self._frames = _FramesOf(graph)
        self._segments: dict[int, int] = {}  # address → bytes
        super().__init__(graph, temporaries, kept_workspace, persistent, retained, None)

    def take(self, number: int) -> None:
        super().take(number)
        if (block := self.blocks[number]) is not None:
            self._allocated(block, self.sizes[number], self._frames.of_storage(number))

    def set_aside(self, role: str, nbytes: Bytes) -> None:
        if nbytes > 0:
            block = self.allocator.allocate(nbytes)
            self.aside.append((role, block.size))
            self._allocated(block, nbytes, [_frame(f"{role} kept beside the step's tensors", role)])

    def step(self, *, first: bool) -> None:
        begin = self.now
        for position, temporary, born, freed in self.moments:
            self.now = max(self.now, begin + self.ends[position])
            if first:
                for nbytes in self.kept.get(position, ()):
                    self.set_aside("workspace", nbytes)
                for number in self.optimizer_state if position == self.update else ():
                    self.take(number)
            working = self.allocator.allocate(temporary) if temporary else None
            if working is not None:
                self._allocated(
                    working, temporary, [_frame("workspace", "inside the op"), *self._frames.of_op(position)]
                )
            for number in born:
                self.take(number)
            if working is not None:
                self._released(working)
            for number in freed:
                if (ending := self.blocks[number]) is not None:
                    self._released(ending)

    def segments(self, device: int) -> list[dict[str, Any]]:
        """What is reserved at the end, with all that lies in it."""
        blocks: dict[int, list[dict[str, Any]]] = defaultdict(list)
        starts = sorted(self._segments)
        taken = sorted((block.address, block.size, nbytes, frames) for block, nbytes, frames in self.live.values())
        for start in starts:
            at, end = start, start + self._segments[start]
            for address, size, nbytes, frames in taken:
                if start <= address < end:
                    if address > at:
                        blocks[start].append(_block(at, address - at, 0, []))
                    blocks[start].append(_block(address, size, nbytes, frames))
                    at = address + size
            if at < end:
                blocks[start].append(_block(at, end - at, 0, []))
        return [_segment(device, start, self._segments[start], blocks[start]) for start in starts]

    def _allocated(self, block: Block, nbytes: Bytes, frames: Frames) -> None:
        start = _segment_of(block)
        if start.address not in self._segments:
            self._segments[start.address] = block.segment
            self._event("segment_alloc", start.address, block.segment, frames)
        self.live[block.address] = block, nbytes, frames
        self._event("alloc", block.address, block.size, frames)

    def _released(self, block: Block) -> None:
        _, _, frames = self.live.pop(block.address)
        for action in ("free_requested", "free_completed"):
            self._event(action, block.address, block.size, frames)
        self.allocator.release(block)

    def _event(self, action: str, address: int, size: Bytes, frames: Frames) -> None:
        self.events.append(
            {
                "action": action,
                "addr": _FIRST_ADDRESS + address,
                "size": size,
                "stream": 0,
                "time_us": round(self.now * 1e6),
                "frames": frames,
            }
        )


class _FramesOf:
    """Frames of ops and storages, made once for each."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._ops: dict[int, Frames] = {}
        self._first: dict[int, int] = {}  # storage → op that touches it first
        for position, op in enumerate(graph.ops):
            for t in (*op.outputs, *op.inputs):
                self._first.setdefault(graph.tensors[t].storage, position)

    def of_op(self, position: int) -> Frames:
        if position not in self._ops:
            op: Op = self.graph.ops[position]
            around = [_frame(module, "module") for module in reversed(prefixes(op.module))]
            self._ops[position] = [
                _frame(op.signature.name, op.module or "step", position),
                *around,
                _frame(op.phase, "phase"),
            ]
        return self._ops[position]

    def of_storage(self, number: int) -> Frames:
        storage = self.graph.storages[number]
        position = storage.born if storage.born >= 0 else self._first.get(number)
        return [_frame(storage.role, "role"), *(self.of_op(position) if position is not None else [])]


def snapshot(recorders: Sequence[Recorder]) -> dict[str, Any]:
    """The snapshot of several ranks, each as a device of its own."""
    return {
        "segments": [segment for device, each in enumerate(recorders) for segment in each.segments(device)],
        "device_traces": [each.events for each in recorders],
        "allocator_settings": {"expandable_segments": False},
        "external_annotations": [],
    }


def _segment_of(block: Block) -> Block:
    while block.before is not None:
        block = block.before
    return block


def _frame(name: str, filename: str, line: int = 0) -> dict[str, Any]:
    return {"name": name, "filename": filename, "line": line}


def _block(address: int, size: Bytes, nbytes: Bytes, frames: Frames) -> dict[str, Any]:
    return {
        "address": _FIRST_ADDRESS + address,
        "size": size,
        "requested_size": nbytes,
        "state": _ALLOCATED if nbytes else _FREE,
        "frames": frames,
    }


def _segment(device: int, start: int, size: Bytes, blocks: list[dict[str, Any]]) -> dict[str, Any]:
    used = sum(b["size"] for b in blocks if b["state"] == _ALLOCATED)
    return {
        "device": device,
        "address": _FIRST_ADDRESS + start,
        "total_size": size,
        "allocated_size": used,
        "active_size": used,
        "requested_size": sum(b["requested_size"] for b in blocks),
        "stream": 0,
        "segment_type": "small" if size <= 2 << 20 else "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": blocks,
    }
