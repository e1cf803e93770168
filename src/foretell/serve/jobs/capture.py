"""A network of a library, by its name, captured here. No caller's code runs: names are the libraries' own, settings numbers."""

from __future__ import annotations

import contextlib
import json
import tempfile
from typing import Annotated, Literal

from pydantic import ConfigDict, Field
from sqlalchemy.orm import Session

from foretell.precision import PRECISIONS
from foretell.serve.database.connect import now
from foretell.serve.database.tables import Job, StoredGraph
from foretell.serve.jobs.work import Done, JobRequest, Means, Say
from foretell.serve.patterns import NETWORK, SETTING, VALUE
from foretell.serve.worker import about

Many = Annotated[int, Field(ge=1, le=65_536)]
Name = Annotated[str, Field(pattern=SETTING)]
Value = int | float | bool | Annotated[str, Field(pattern=VALUE)]  # no path: it has no slash


class CaptureRequest(JobRequest):
    """A SOURCE such as `foretell models` lists, with what people usually set."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "source": "torchvision/resnet50",
                    "batch": 64,
                    "precision": "amp-bf16",
                    "settings": {"image_size": 384},
                }
            ]
        }
    )

    source: Annotated[str, Field(pattern=NETWORK, examples=["torchvision/resnet50"])]
    batch: Many | None = None
    seq: Many | None = None
    precision: Annotated[str, Field(examples=list(PRECISIONS))] = "fp32"
    training: bool = True
    optimizer: Literal["adamw", "sgd"] = "adamw"
    settings: Annotated[dict[Name, Value], Field(max_length=50)] = Field(
        default={},
        description="All else that `--set` takes of it.",
        examples=[{"image_size": 384, "channels_last": True}],
    )

    def check(self) -> None:
        from foretell.errors import InputError, check_choice

        check_choice("precision", self.precision, PRECISIONS, InputError)
        if twice := [name for name in self.settings if name in type(self).model_fields]:
            raise InputError(f"{twice[0]} is a field of its own. Leave it out of settings.")

    def all_settings(self) -> dict[str, str]:
        """As `--set` takes them."""
        given: dict[str, Value | None] = {"batch": self.batch, "seq": self.seq}
        chosen = {"precision": self.precision, "optimizer": self.optimizer if self.training else "none"}
        given |= {
            name: str(value).lower() if value in (True, False) else value for name, value in self.settings.items()
        }
        return chosen | {name: str(value) for name, value in given.items() if value is not None}

    def do(self, material: bytes, say: Say, means: Means) -> Done:
        from foretell.capture import capture

        with tempfile.TemporaryDirectory() as nowhere, contextlib.chdir(nowhere):  # no file of that name is meant
            graph = capture(self.source, self.all_settings(), progress=say)
        return Done(result=json.dumps(about(graph)), file=graph.to_bytes())

    def keep(self, session: Session, job: Job, done: Done) -> None:
        found = json.loads(done.result)
        if session.get(StoredGraph, (job.team_id, found["hash"])) is None:
            session.add(StoredGraph(team_id=job.team_id, data=done.file, created=now(), **found))
