"""Names that matplotlib had when a script was written: colours and pictures as then, and nothing for what else is gone.

No step needs a plot, but many scripts make their colours as they are imported, and turn a figure into a picture for a log.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any, Final

import numpy as np

from foretell.capture.script.imports import once_imported
from foretell.capture.script.pretend.nothing import has_everything
from foretell.capture.script.session import Session

# Modules without parts of their own: of a package, `from package import part` looks for a name before it looks for a file.
_WHOLE: Final = tuple(f"matplotlib.{part}" for part in ("cm", "pyplot", "cbook", "mlab", "colors", "font_manager"))


def install(session: Session) -> None:
    once_imported("matplotlib.cm", colours)
    once_imported("matplotlib.backends.backend_agg", canvas)
    once_imported("matplotlib.style", styles)
    once_imported("matplotlib.figure", figures)
    once_imported("matplotlib.axes", pictures)
    for name in _WHOLE:
        once_imported(name, has_everything)


def colours(module: Any) -> None:
    """`cm.get_cmap(name, lut)` was a function; maps lie in a table now."""
    maps = getattr(module, "_colormaps", None)
    if maps is None or hasattr(module, "get_cmap"):
        return

    def get_cmap(name: Any = None, lut: int | None = None) -> Any:
        if name is not None and not isinstance(name, str):
            return name  # a map is its own
        found = maps["viridis" if name is None else name]
        return found if lut is None else found.resampled(lut)

    def register_cmap(name: str | None = None, cmap: Any = None, **how: Any) -> None:
        maps.register(cmap, name=name, force=True)

    module.get_cmap, module.register_cmap, module.cmap_d = get_cmap, register_cmap, maps


def canvas(module: Any) -> None:
    """A figure's picture as bytes of three colours."""
    kind = module.FigureCanvasAgg
    if not hasattr(kind, "tostring_rgb"):
        kind.tostring_rgb = lambda self: np.asarray(self.buffer_rgba())[..., :3].tobytes()
    if not hasattr(kind, "set_window_title"):
        kind.set_window_title = lambda self, title: None


def styles(module: Any) -> None:
    """A style of a former name, which changes no step."""
    use = module.use

    @functools.wraps(use)
    def used(style: Any) -> None:
        with contextlib.suppress(OSError):
            use(style)

    module.use = used


def figures(module: Any) -> None:
    """`figure.gca(projection="3d")` made axes of that kind."""
    kind: Any = module.FigureBase
    current = kind.gca
    kind.gca = lambda self, **how: self.add_subplot(**how) if how else current(self)


def pictures(module: Any) -> None:
    """What has other sides or colours than a picture is not drawn: it may stand in for one."""
    kind: Any = module.Axes
    show = kind.imshow

    @functools.wraps(show)
    def imshow(self: Any, *args: Any, **how: Any) -> Any:
        with contextlib.suppress(TypeError, ValueError):
            return show(self, *args, **how)

    kind.imshow = imshow
