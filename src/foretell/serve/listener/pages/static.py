"""Files that pages load, all in this package: styles, htmx (0BSD, its licence beside it) and a script of our own."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from fastapi import APIRouter
from fastapi.responses import Response

from foretell.report.page import STYLE
from foretell.serve.problems import Problem

router = APIRouter()
_FOLDER: Final = Path(__file__).parent / "static"
_KINDS: Final = {".css": "text/css", ".js": "text/javascript", ".LICENSE": "text/plain"}
_FILES: Final = {
    path.name: (path.read_bytes(), _KINDS[path.suffix])
    for path in (STYLE, *(_FOLDER / name for name in ("service.css", "page.js", "htmx.min.js", "htmx.LICENSE")))
}
_VERSIONS: Final = {name: hashlib.sha256(data).hexdigest()[:12] for name, (data, _) in _FILES.items()}


def address(name: str) -> str:
    """With its version, so that a browser may keep it."""
    return f"/static/{name}?{_VERSIONS[name]}"


@router.get("/static/{name}")
async def static(name: str) -> Response:
    if name not in _FILES:
        raise Problem(404, f"there is no file {name[:100]!r}.", next="Go to /")
    data, kind = _FILES[name]
    return Response(data, media_type=kind, headers={"Cache-Control": "public, max-age=31536000, immutable"})
