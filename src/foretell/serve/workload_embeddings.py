"""PredictDDL's workload-embedding generator: which known networks are like one, and what was measured of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from sqlalchemy import select

from foretell.serve.access.keys import Caller
from foretell.serve.database.connect import Database
from foretell.serve.database.tables import Measurement, StoredGraph
from foretell.units import Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredTime:
    cluster: str
    plan: str
    seconds: Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """A network of the team; 1 is the same direction of the embedding, so as alike as the hypernetwork can tell."""

    graph: str
    name: str
    similarity: float
    measured: tuple[MeasuredTime, ...]


class WorkloadEmbeddings:
    """Embeddings are made when they are first asked for, and kept with their graph."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def missing(self, caller: Caller) -> list[str]:
        """Graphs of the team without one, the newest first."""
        wanted = select(StoredGraph.hash).where(StoredGraph.team_id == caller.team, StoredGraph.embedding.is_(None))
        with self._database.reading() as session:
            return list(session.scalars(wanted.order_by(StoredGraph.created.desc())))

    def keep(self, caller: Caller, graph: str, embedding: Sequence[float]) -> None:
        with self._database.writing() as session:
            found = session.get(StoredGraph, (caller.team, graph))
            if found is not None:
                found.embedding = {"vector": list(embedding)}

    def nearest(self, caller: Caller, graph: str, most: int) -> list[Neighbour]:
        columns = (StoredGraph.hash, StoredGraph.name, StoredGraph.embedding)
        wanted = select(*columns).where(StoredGraph.team_id == caller.team, StoredGraph.embedding.is_not(None))
        with self._database.reading() as session:
            known = {row.hash: row for row in session.execute(wanted)}
            if graph not in known:
                return []
            alike = cosines(graph, {name: row.embedding["vector"] for name, row in known.items()})
            near = sorted(alike, key=lambda name: -alike[name])[:most]
            return [
                Neighbour(
                    graph=name, name=known[name].name, similarity=alike[name],
                    measured=tuple(
                        MeasuredTime(cluster=row.cluster, plan=row.plan, seconds=row.seconds)
                        for row in session.scalars(select(Measurement).filter_by(team_id=caller.team, graph=name))
                    ),
                )
                for name in near
            ]  # fmt: skip


def cosines(of: str, vectors: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """The similarity of every other one to one of them."""
    own = np.asarray(vectors[of])
    scale = float(np.linalg.norm(own))
    return {
        name: float(own @ np.asarray(other) / max(scale * float(np.linalg.norm(other)), 1e-12))
        for name, other in vectors.items()
        if name != of
    }
