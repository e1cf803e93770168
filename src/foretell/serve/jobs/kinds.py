"""All kinds of long work by their names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from foretell.serve.jobs.adapt import AskedAdapt
from foretell.serve.jobs.capture import AskedCapture
from foretell.serve.jobs.of_graph import AskedPlans, AskedScale
from foretell.serve.jobs.work import AskedLong

KINDS: Final[Mapping[str, type[AskedLong]]] = {
    "plan": AskedPlans,
    "scale": AskedScale,
    "capture": AskedCapture,
    "adapt": AskedAdapt,
}


def made(kind: str, question: dict[str, Any]) -> AskedLong:
    """As it was asked, from what the database kept of it."""
    return KINDS[kind].model_validate_json(json.dumps(question))
