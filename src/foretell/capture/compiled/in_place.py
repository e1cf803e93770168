"""Which buffers a fused kernel writes over what it reads last, as Inductor decides it while it writes the kernel."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from torch._inductor import ir
from torch._inductor.virtualized import V


class InPlace:
    """Asks the scheduler node by node, in their order, with stand-ins for the kernel and the code around it."""

    def __init__(self, graph: Any, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._freed: set[str] = set()
        if graph.wrapper_code is None:
            graph.wrapper_code = SimpleNamespace(can_reuse=self._can_reuse)

    def buffers(self, node: Any) -> dict[str, str]:
        """What is made -> the buffer whose memory it takes."""
        kernel = SimpleNamespace(args=SimpleNamespace(make_inplace=lambda *names: None), inplace_update_buffers={})
        with V.set_kernel_handler(kernel):
            for part in node.get_nodes():
                part.decide_inplace_update()
        found: dict[str, str] = {}
        for made, over in kernel.inplace_update_buffers.items():
            found[made] = found.get(over, over)  # what only the kernel sees has the memory that it takes itself
        self._freed.update(found.values())
        return found

    def passed(self, node: Any) -> None:
        """The node has run."""
        self._scheduler.completed_operations.update(node.get_operation_names())

    def _can_reuse(self, buffer: Any, by: Any = None) -> bool:
        graph, name = V.graph, buffer.get_name()
        given = name in graph.graph_inputs and not isinstance(graph.graph_inputs_original[name], ir.DonatedBuffer)
        kept = (
            graph.removed_buffers,
            graph.constants,
            graph.torchbind_constants,
            graph.never_reuse_buffers,
            self._freed,
        )
        return not given and not any(name in names for names in kept)
