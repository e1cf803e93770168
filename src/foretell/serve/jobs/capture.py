"""A network of a library, by its name, captured here. No caller's code runs: names are the libraries' own, settings numbers."""

from __future__ import annotations

import contextlib
import json
import tempfile
from typing import Annotated, Final, Literal

from pydantic import Field
from sqlalchemy.orm import Session

from foretell.precision import PRECISIONS
from foretell.serve.database.connect import now
from foretell.serve.database.tables import Job, StoredGraph
from foretell.serve.jobs.work import Done, JobRequest, Means, Say
from foretell.serve.worker import about

LIBRARIES: Final = ("timm", "torchvision", "hf")
_NAME: Final = rf"^({'|'.join(LIBRARIES)})/[A-Za-z0-9][A-Za-z0-9._-]{{0,199}}$"
Many = Annotated[int, Field(ge=1, le=65_536)]


class CaptureRequest(JobRequest):
    """A SOURCE such as `foretell models` lists, with what people usually set."""

    source: Annotated[str, Field(pattern=_NAME, examples=["torchvision/resnet50"])]
    batch: Many | None = None
    seq: Many | None = None
    precision: Annotated[str, Field(examples=list(PRECISIONS))] = "fp32"
    training: bool = True
    optimizer: Literal["adamw", "sgd"] = "adamw"

    def check(self) -> None:
        from foretell.errors import InputError, check_choice

        check_choice("precision", self.precision, PRECISIONS, InputError)

    @property
    def settings(self) -> dict[str, str]:
        """As `--set` takes them."""
        given = {"batch": self.batch, "seq": self.seq}
        chosen = {"precision": self.precision, "optimizer": self.optimizer if self.training else "none"}
        return chosen | {name: str(value) for name, value in given.items() if value is not None}

    def do(self, material: bytes, say: Say, means: Means) -> Done:
        from foretell.capture import capture

        with tempfile.TemporaryDirectory() as nowhere, contextlib.chdir(nowhere):  # no file of that name is meant
            graph = capture(self.source, self.settings, progress=say)
        return Done(result=json.dumps(about(graph)), file=graph.to_bytes())

    def keep(self, session: Session, job: Job, done: Done) -> None:
        found = json.loads(done.result)
        if session.get(StoredGraph, (job.team_id, found["hash"])) is None:
            session.add(StoredGraph(team_id=job.team_id, data=done.file, created=now(), **found))
