"""A process that does one job: it says how far it is, then its result."""

from __future__ import annotations

import json
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from foretell.errors import ForetellError
from foretell.hardware.of_a_team import laid_out, taken
from foretell.serve.jobs.adapt import AdaptRequest
from foretell.serve.jobs.capture import CaptureRequest
from foretell.serve.jobs.of_graph import PlanRequest, ScaleRequest
from foretell.serve.jobs.work import JobRequest, Means
from foretell.serve.worker import pack, unpack

KINDS: Final[Mapping[str, type[JobRequest]]] = {
    "plan": PlanRequest,
    "scale": ScaleRequest,
    "capture": CaptureRequest,
    "adapt": AdaptRequest,
}


def made(kind: str, question: dict[str, Any]) -> JobRequest:
    """As it was asked, from what the database kept of it."""
    return KINDS[kind].model_validate_json(json.dumps(question))


def serve(link: Connection) -> None:
    head, data = unpack(link.recv_bytes())
    means = Means(profile=Path(head["profile"]) if head["profile"] else None, ray=head["ray"])
    try:
        with taken(laid_out(head["devices"])):
            done = made(head["kind"], head["question"]).do(
                data, lambda text: link.send_bytes(pack({"message": text})), means
            )
        link.send_bytes(pack({"done": True, "result": done.result, "picture": done.picture}, done.file))
    except ForetellError as error:
        link.send_bytes(pack({"error": str(error)}))
