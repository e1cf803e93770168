"""Kernels of the Hugging Face hub (`kernels.get_kernel`), which are built for GPUs: known by the names of their functions."""

from __future__ import annotations

import sys
import types
from typing import Any, Final

from foretell.capture.script.pretend.kernels.by_bytes import Writing
from foretell.capture.script.pretend.kernels.known import KNOWN
from foretell.capture.script.pretend.kernels.package import as_declared, is_tried
from foretell.capture.script.session import Session
from foretell.declared import DECLARED

_LOADERS: Final = ("get_kernel", "get_local_kernel", "get_locked_kernel", "load_kernel")


class HubKernel(types.ModuleType):
    """A repository of kernels, or a part of it: it has the functions of the package that it was built from."""

    def __init__(self, name: str, session: Session) -> None:
        super().__init__(name)
        self.__dict__["session"] = session

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if (path := f"{self.__name__}.{name}") in DECLARED:
            return as_declared(DECLARED[path])
        found = next((known for known in KNOWN if known.rpartition(".")[2] == name), None)
        if found is not None:
            self.session.find_name("kernels", found)
            return KNOWN[found]
        if any(name in known.split(".")[:-1] for known in KNOWN):
            return HubKernel(path, self.session)
        if is_tried(sys._getframe(1)):
            raise AttributeError(name)
        return Writing(path)


def load_from_hub(session: Session, module: Any) -> Any:
    """Give what `kernels` would download and load, without either."""

    def get_kernel(repo_id: str, *args: Any, **how: Any) -> HubKernel:
        session.stand_in(f"kernels of {repo_id}")
        return HubKernel(str(repo_id).rpartition("/")[2].replace("-", "_"), session)

    vars(module).update(dict.fromkeys(_LOADERS, get_kernel), has_kernel=lambda *args, **how: True)
    return module
