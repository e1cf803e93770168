"""What the site needs beside the pages: a link that leaves docs/ becomes the path of the file in the repository."""

from __future__ import annotations

import os.path
import re
from typing import Any

_LINK = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+[^)#\s]+)(?:#[^)\s]*)?\)")


def on_page_markdown(markdown: str, /, *, page: Any, **_: object) -> str:
    folder = os.path.dirname(page.file.src_uri)

    def shown(link: re.Match[str]) -> str:
        place = os.path.normpath(os.path.join("docs", folder, link[2]))
        if place.startswith("docs/"):
            return link[0]
        return f"`{place}`" if link[1].strip("`") == place else f"{link[1]} (`{place}`)"

    return _LINK.sub(shown, markdown)
