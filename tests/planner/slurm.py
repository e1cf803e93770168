"""A Slurm controller of this suite's own, with one node that would be started on demand and never is."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

_CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
AuthType=auth/none
CredType=cred/none
SlurmUser={user}
SlurmctldPort={port}
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/controller.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
GresTypes=gpu
ResumeProgram=/bin/true
SuspendProgram=/bin/true
SuspendTime=3600
NodeName=board CPUs={cpus} RealMemory=100000 Gres=gpu:{boards} NodeAddr=127.0.0.1 State=CLOUD
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@contextlib.contextmanager
def controller(folder: Path, *, cpus: int, boards: int) -> Iterator[dict[str, str]]:
    """The environment in which `sbatch` finds it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (folder / "state").mkdir()
    conf = folder / "slurm.conf"
    user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
    conf.write_text(
        _CONF.format(host=socket.gethostname(), user=user, port=port, folder=folder, cpus=cpus, boards=boards)
    )
    (folder / "gres.conf").write_text(f"NodeName=board Name=gpu Count={boards}\n")
    environment = os.environ | {"SLURM_CONF": str(conf)}
    running = subprocess.Popen(
        ["slurmctld", "-D", "-c", "-f", str(conf)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        until = time.monotonic() + 60
        while subprocess.run(["scontrol", "ping"], env=environment, capture_output=True, check=False).returncode:
            assert time.monotonic() < until, "the controller does not answer"
            time.sleep(0.5)
        yield environment
    finally:
        running.kill()
        running.wait()
