"""What a launcher would set in a script's environment.

A script that is run on several devices finds the variables of torchrun, or of the launcher of its launch line. One that
is run on one device finds none, as under `python train.py`, unless it reads one without asking whether it is there: then
it is meant for a launcher, and finds itself as the only process of one.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Final

from foretell.capture.as_gpu.patches import replace
from foretell.capture.script.session import Session

_ADDRESS: Final = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


def install(session: Session) -> None:
    """Set what torchrun sets; a script started without one finds nothing, whoever has started Foretell."""
    launched = _torchrun(session)
    others = launched | _slurm(session) | _mpi(session)
    for name in others:
        os.environ.pop(name, None)
    given = dict(session.script.environment)
    launcher = session.script.launcher or ("torchrun" if session.ranks > 1 else "python")
    sets = {"python": {}, "torchrun": launched, "srun": _slurm(session), "mpirun": _mpi(session)}
    os.environ.update(sets[launcher] | given)
    for folder in reversed(given.get("PYTHONPATH", "").split(os.pathsep)):
        if folder:
            sys.path.insert(1, os.path.abspath(folder))  # as an interpreter finds it when it starts
    _answer_who_takes_it_for_granted({name: value for name, value in others.items() if name not in given})


def _torchrun(session: Session) -> dict[str, str]:
    nodes = max(session.ranks // session.devices, 1)
    return {
        "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(session.ranks), "LOCAL_WORLD_SIZE": str(session.devices),
        "GROUP_RANK": "0", "GROUP_WORLD_SIZE": str(nodes), "ROLE_RANK": "0", "ROLE_NAME": "default",
        "ROLE_WORLD_SIZE": str(session.ranks), "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": "none",
    } | _ADDRESS  # fmt: skip


def _slurm(session: Session) -> dict[str, str]:
    nodes = str(max(session.ranks // session.devices, 1))
    return {
        "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURM_NTASKS": str(session.ranks),
        "SLURM_NPROCS": str(session.ranks), "SLURM_NTASKS_PER_NODE": str(session.devices), "SLURM_NNODES": nodes,
        "SLURM_JOB_NUM_NODES": nodes, "SLURM_GPUS_ON_NODE": str(session.devices), "SLURM_CPUS_PER_TASK": "8",
        "SLURM_NODELIST": "localhost", "SLURM_JOB_NODELIST": "localhost", "SLURM_JOB_ID": "1", "SLURM_JOBID": "1",
        "SLURM_SUBMIT_DIR": os.getcwd(), "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1",
    }  # fmt: skip


def _mpi(session: Session) -> dict[str, str]:
    ranks, devices = str(session.ranks), str(session.devices)
    return {
        "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": ranks, "OMPI_COMM_WORLD_LOCAL_RANK": "0",
        "OMPI_COMM_WORLD_LOCAL_SIZE": devices, "PMI_RANK": "0", "PMI_SIZE": ranks,
    }  # fmt: skip


def _answer_who_takes_it_for_granted(variables: dict[str, str]) -> None:
    """`os.environ[name]` finds a launcher's variable; `get` and `in`, which ask whether there is a launcher, do not."""
    look_up: Any = os._Environ.__getitem__

    def item(self: Any, name: Any) -> Any:
        try:
            return look_up(self, name)
        except KeyError:
            if name not in variables:
                raise
            return variables[name]

    def contains(self: Any, name: object) -> bool:
        try:
            look_up(self, name)
        except KeyError:
            return False
        return True

    def get(self: Any, name: Any, default: Any = None) -> Any:
        try:
            return look_up(self, name)
        except KeyError:
            return default

    def set_default(self: Any, name: Any, value: Any) -> Any:
        if not contains(self, name):
            self[name] = value
        return look_up(self, name)

    def pop(self: Any, name: Any, *default: Any) -> Any:
        try:
            value = look_up(self, name)
        except KeyError:
            if default:
                return default[0]
            raise
        del self[name]
        return value

    replacements = {"__getitem__": item, "__contains__": contains, "get": get, "setdefault": set_default, "pop": pop}
    for name, function in replacements.items():
        replace(os._Environ, name, function)
