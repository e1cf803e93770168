"""A process that does one job: it says how far it is, then its result."""

from __future__ import annotations

from multiprocessing.connection import Connection
from pathlib import Path

from foretell.errors import ForetellError
from foretell.serve.jobs.kinds import made
from foretell.serve.jobs.work import Means
from foretell.serve.worker import pack, unpack


def serve(link: Connection) -> None:
    head, data = unpack(link.recv_bytes())
    means = Means(profile=Path(head["profile"]) if head["profile"] else None, ray=head["ray"])
    try:
        done = made(head["kind"], head["question"]).do(
            data, lambda text: link.send_bytes(pack({"message": text})), means
        )
        link.send_bytes(pack({"done": True, "result": done.result, "picture": done.picture}, done.file))
    except ForetellError as error:
        link.send_bytes(pack({"error": str(error)}))
