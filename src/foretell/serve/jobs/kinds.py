"""All kinds of long work by their names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from foretell.serve.jobs.adapt import AdaptRequest
from foretell.serve.jobs.capture import CaptureRequest
from foretell.serve.jobs.of_graph import PlanRequest, ScaleRequest
from foretell.serve.jobs.work import JobRequest

KINDS: Final[Mapping[str, type[JobRequest]]] = {
    "plan": PlanRequest,
    "scale": ScaleRequest,
    "capture": CaptureRequest,
    "adapt": AdaptRequest,
}


def made(kind: str, question: dict[str, Any]) -> JobRequest:
    """As it was asked, from what the database kept of it."""
    return KINDS[kind].model_validate_json(json.dumps(question))
