"""`/v1/graphs`: graphs that clients captured."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict
from sqlalchemy import select

from foretell.limits import limit
from foretell.serve.access.guard import too_large
from foretell.serve.database.tables import StoredGraph
from foretell.serve.listener.callers import Few, Member, Reader, ServiceDep
from foretell.serve.requests import EXAMPLE, Hash

router = APIRouter(prefix="/v1/graphs", tags=["graphs"])


class GraphSummary(BaseModel):
    """What a graph is about; `hash` is what questions name it by."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "hash": EXAMPLE,
                    "name": "resnet50",
                    "ops": 1630,
                    "training": True,
                    "precision": "amp-bf16",
                    "created": 1.79e9,
                }
            ]
        }
    )

    hash: str
    name: str
    ops: int
    training: bool
    precision: str
    created: float


def _summary(graph: StoredGraph) -> GraphSummary:
    return GraphSummary(**{name: getattr(graph, name) for name in GraphSummary.model_fields})


_UPLOAD: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        "description": "A .graph file, as `foretell inspect SOURCE --save FILE` writes it.",
    }
}


@router.post("", status_code=201, openapi_extra=_UPLOAD)
async def send_graph(request: Request, service: ServiceDep, caller: Member) -> GraphSummary:
    """Send a .graph file. It is checked as any file from a stranger, and kept for your team alone."""
    most, data = limit("bytes of a graph file"), bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > most:
            raise too_large(most)
    return _summary(await service.keep_graph(caller, bytes(data)))


@router.get("")
def list_graphs(service: ServiceDep, caller: Reader, most: Few = 100) -> list[GraphSummary]:
    """The graphs of your team, the newest first."""
    with service.database.reading() as session:
        rows = session.scalars(
            select(StoredGraph).filter_by(team_id=caller.team).order_by(StoredGraph.created.desc()).limit(most)
        )
        return [_summary(row) for row in rows]


@router.get("/{hash}")
def get_graph(hash: Hash, service: ServiceDep, caller: Reader) -> GraphSummary:
    """What a graph of your team is about."""
    return _summary(service.graph(caller, hash))


@router.get("/{hash}/file", response_class=Response)
def get_graph_file(hash: Hash, service: ServiceDep, caller: Reader) -> Response:
    """The file, as it was sent."""
    return Response(service.graph(caller, hash).data, media_type="application/octet-stream")
