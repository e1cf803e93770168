"""Names of networks that libraries have: asked for once, in a process of its own, since it loads the libraries."""

from __future__ import annotations

import contextlib
import json
import threading
from multiprocessing.connection import Connection
from typing import Final

from foretell.errors import SourceError, did_you_mean
from foretell.serve.patterns import LIBRARIES
from foretell.supervisor import Child, ChildEnded
from foretell.units import Seconds

_PATIENCE: Final[Seconds] = 120.0
_WAIT: Final[Seconds] = 10.0  # that a person waits for the names
_SHOWN: Final = 40
# What people ask for first, shown before anything is typed.
USUAL: Final = (
    "torchvision/resnet50", "timm/vit_base_patch16_224", "hf/bert-base", "hf/gpt2", "hf/llama-3-8b",
)  # fmt: skip


class Zoo:
    def __init__(self) -> None:
        self._names = USUAL
        self._lock = threading.Lock()
        self._started = False
        self._answered = threading.Event()

    def names(self) -> tuple[str, ...]:
        """The usual ones until the libraries have told theirs: nobody waits for that."""
        with self._lock:
            if not self._started:
                self._started = True
                threading.Thread(target=self._ask, name="foretell-names", daemon=True).start()
        return self._names

    def check(self, source: str, *, wait: bool = False) -> None:
        """Refuse a name that no library here has, before a capture begins; until they have answered, the capture says it."""
        if source in USUAL:
            return
        if wait:
            self.names()
            self._answered.wait(_WAIT)
        known = self._names
        if known is not USUAL and source not in known:
            library = source.partition("/")[0]
            few = sum(name.startswith(f"{library}/") for name in known)
            raise SourceError(
                f"no network {source!r} here. {did_you_mean(source, known)}{library} has {few:,} names; the page's field "
                "lists those that are like what is written, foretell models all of them."
            )

    def _ask(self) -> None:
        with contextlib.suppress(ChildEnded, TimeoutError, OSError), Child.fresh("foretell.serve.zoo:tell") as child:
            self._names = tuple(json.loads(child.receive(_PATIENCE)))
        self._answered.set()

    def like(self, text: str) -> list[str]:
        """Those with every word of the text in them, the shortest first."""
        words = text.lower().replace("/", " ").split()
        if not words:
            return [name for name in self.names() if name in USUAL]
        found = [name for name in self.names() if all(word in name.lower() for word in words)]
        return sorted(found, key=lambda name: (len(name), name))[:_SHOWN]


def tell(link: Connection) -> None:
    """In the process of its own."""
    from foretell.sources.named import library

    found = []
    for prefix in LIBRARIES:
        try:
            found += [f"{prefix}/{name}" for name in library(prefix).names()]
        except SourceError:  # not installed
            continue
    link.send_bytes(json.dumps(found).encode())
