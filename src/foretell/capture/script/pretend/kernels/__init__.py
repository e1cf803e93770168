"""Packages of CUDA and Triton kernels, which cannot run here: the few that are known, and what is said of all others.

A package that is not installed is stood in for where the script imports it. What is known is run as torch's own op of the
same kind; what a user has declared with `foretell.opaque` as declared; anything else says how to declare it.
"""

from __future__ import annotations

import sys
from functools import partial
from types import ModuleType
from typing import Any

from foretell.capture.script.imports import once_imported, provide
from foretell.capture.script.pretend.kernels import by_bytes, compiled, flexible, from_hub, notes, triton
from foretell.capture.script.pretend.kernels.known import KNOWN, PACKAGES
from foretell.capture.script.pretend.kernels.package import Package, as_declared, goes_on_without
from foretell.capture.script.repository import is_near
from foretell.capture.script.session import Session
from foretell.declared import DECLARED

__all__ = ["install"]


def install(session: Session) -> None:
    """Let kernels be those of the table, as declared, or an error that says how to declare them."""
    notes.begin(session)
    provide(
        _is_of_kernels,
        lambda name: (triton.Triton if name.partition(".")[0] == "triton" else Package)(name, session),
    )
    provide(triton.is_needed_by_a_library, lambda name: triton.Triton(name, session), to_everyone=True)
    once_imported("torch.utils.cpp_extension", compiled.adapt)
    compiled.compile_nothing()
    provide(lambda name: compiled.would_be_built(name) and not goes_on_without(sys._getframe(1)), compiled.Extension)
    by_bytes.know_gradients()
    load_from_hub = partial(from_hub.load_from_hub, session)
    once_imported("kernels", load_from_hub)
    provide(lambda name: name == "kernels" and not is_near(name), lambda name: load_from_hub(ModuleType(name)))
    once_imported("torch.nn.attention.flex_attention", flexible.adapt)
    once_imported("triton", triton.adapt_installed)
    once_imported("timm.utils.cuda", lambda module: _let_apex_scale(module, session))
    for name in {path.rpartition(".")[0] for path in (*KNOWN, *DECLARED)}:
        once_imported(name, _put)


def _let_apex_scale(module: Any, session: Session) -> None:
    """A library that has found no Apex scales losses with it all the same, where a script asks it to."""
    if getattr(module, "amp", None) is None:
        module.amp = Package("apex.amp", session)


def _is_of_kernels(name: str) -> bool:
    package = name.partition(".")[0]
    return package in PACKAGES or any(path.startswith(f"{package}.") for path in DECLARED)


def _put(module: Any) -> None:
    """Into a module that is there, what runs instead of its functions."""
    declared = {path: as_declared(cost) for path, cost in DECLARED.items()}
    for path, value in {**KNOWN, **declared}.items():
        package, _, name = path.rpartition(".")
        if package == module.__name__ and not isinstance(module, Package):
            vars(module)[name] = value
