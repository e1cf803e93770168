"""A search on a Ray cluster: a task for each question, tried again elsewhere where a node is lost."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Iterable, Iterator
from typing import Any, Final

from foretell.errors import ForetellError, InputError
from foretell.planner.pool import Work

_TRIES: Final = 5  # of a task whose node was lost


class RayRunner:
    """Questions answered by the processors of a cluster; what they share is sent to each node once."""

    def __init__(self, address: str) -> None:
        if importlib.util.find_spec("ray") is None:
            raise InputError("a search on a cluster needs Ray. Install it with: pip install 'foretell[ray]'")
        import ray

        if not ray.is_initialized():
            try:
                ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
            except (ConnectionError, ValueError, RuntimeError) as error:
                raise InputError(
                    f"no Ray cluster answers at {address!r}: {error}. Start one, or leave --ray out."
                ) from None
        self.workers = max(int(_api(ray).cluster_resources().get("CPU", 1)), 1)

    def each(self, work: Work, shared: Any, asked: Iterable[Any]) -> Iterator[Any]:
        import ray

        remote = ray.remote(num_cpus=1, max_retries=_TRIES)(work)
        kept = ray.put(shared)
        left, running = iter(asked), list[Any]()
        while True:
            while len(running) < self.workers and (one := next(left, _NONE)) is not _NONE:
                running.append(remote.remote(kept, one))
            if not running:
                return
            done, running = ray.wait(running, num_returns=1)
            try:
                yield ray.get(done[0])
            except ray.exceptions.RayTaskError as error:
                raise error.cause if isinstance(error.cause, ForetellError) else ForetellError(str(error)) from None
            except ray.exceptions.RayError as error:
                raise ForetellError(
                    f"the Ray cluster lost a part of the search for good: {error}. Run it again."
                ) from None


_NONE: Any = object()


def _api(ray: Any) -> Any:
    """Parts of Ray are not typed."""
    return ray
