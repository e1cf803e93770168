"""What a forecast rests on, as the one name by which the service and the planner find it again."""

from __future__ import annotations

from foretell.engine import digest, stamped_digest
from foretell.forecasting.conditions import Conditions
from foretell.forecasting.job import JobLength
from foretell.hardware import Cluster
from foretell.hardware.catalog import own_files
from foretell.plans import Plan


def answer_key(
    step: str,
    hardware: str,
    plan: Plan | None,
    *,
    model: tuple[str, str],
    profile: object,
    conditions: Conditions | None,
    job: JobLength | None = None,
) -> str:
    """Name the answer about a step by this engine and by the content of all that was given, however it was written.

    `hardware` is as `hardware_key` says, `model` its name and the digest of its files, `profile` all that a profile says.
    """
    return digest(step, hardware, plan, model, profile, conditions, job)


def hardware_key(cluster: Cluster) -> str:
    """Name a cluster by its content, and by the user's own files of the catalog.

    Hosts, fabrics and offers are looked up by their names while a step is priced.
    """
    return digest(cluster, stamped_digest(own_files()))
