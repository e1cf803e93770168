"""Puts all stand-ins in place, in order, and runs a script among them. It changes this process for good."""

from __future__ import annotations

import multiprocessing
import runpy
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import torch

from foretell.capture.as_gpu import attention, behave_as_gpu, let_fake_tensors_pass_as_real
from foretell.capture.script import compiling, parsed, repository
from foretell.capture.script.guesses import Guesses
from foretell.capture.script.imports import once_imported
from foretell.capture.script.pretend import (
    absent,
    addresses,
    asserted,
    assigned,
    class_weights,
    commands,
    cuda,
    data,
    empty_sets,
    environment,
    former,
    former_arguments,
    former_functions,
    former_hub,
    former_hydra,
    former_language,
    former_lightning,
    former_methods,
    former_modules,
    former_names,
    former_packaging,
    former_pictures,
    former_places,
    former_plots,
    former_python,
    former_sounds,
    former_tables,
    former_tensors,
    former_vision,
    former_yaml,
    games,
    generation,
    gpu_builds,
    kernels,
    large,
    lazily,
    likenesses,
    made_batches,
    made_up,
    missing_files,
    more_samples,
    moving,
    native,
    numbered,
    nvml,
    old_types,
    processes,
    quantized,
    quiet,
    series_sets,
    stand_ins,
    texts,
    tools,
    trackers,
    workers,
)
from foretell.capture.script.pretend.hub import account
from foretell.capture.script.readings import Reading
from foretell.capture.script.session import Session
from foretell.capture.script.watch import Watch
from foretell.capture.script.wrappers import (
    checkpoints,
    data_parallel,
    ddp,
    deepspeed,
    fsdp,
    fully_shard,
    pipelining,
    sync_batch_norm,
    tensor_parallel,
)
from foretell.declared import DECLARED
from foretell.errors import SourceError
from foretell.graph import Graph
from foretell.sources.named.torchvision_ops import make_torchvision_importable, use_declared_operators
from foretell.sources.scripts import Script


def trace_script(
    script: Script,
    report: Callable[[str], None] = lambda text: None,
    refuse: Callable[[str], None] = lambda text: None,
    guesses: Guesses | None = None,
    again: Callable[[Mapping[str, Any]], None] = lambda shown: None,
) -> Graph:
    """Record the step of a script. `report` hears where it is, `refuse` that it leads nowhere, and `again` what the next run
    should know of one that takes too long; all from another thread.

    Raises:
        Contradicted: The script contradicts what a stand-in was taken to be: it wants another run.
    """
    if not Path(script.path).is_file():
        raise SourceError(f"no file '{script.path}'. Give the path of a training script.")
    _start_clean()
    with torch.inference_mode(False), torch.enable_grad():
        session = Session(script, guesses)
        session.report = report
        Watch(session, report, refuse, again).start()
        for install in _STAND_INS:
            install(session)
        return session.graph()


def _start_clean() -> None:
    """Forget what was set in a process that this one is a fork of: a script finds torch as it is installed."""
    DECLARED.clear()
    Reading.decided.clear()
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = True
    torch.use_deterministic_algorithms(False)
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    multiprocessing.set_start_method(None, force=True)
    if (accelerate := sys.modules.get("accelerate.state")) is not None:
        accelerate.AcceleratorState._reset_state(reset_partial_state=True)
        accelerate.GradientState._reset_state()


def _behave_as_gpu(session: Session) -> None:
    make_torchvision_importable()
    behave_as_gpu()
    compiling.install(session)
    torch.set_num_threads(1)


def _compute_where_tensors_lie(session: Session) -> None:
    attention.AROUND_MATH.append(session.place.made_with)


def _follow_steps(session: Session) -> None:
    session.updates.follow()
    session.passes.install()


def _declare_operations(session: Session) -> None:
    """Run the file in which the user declares operations that cannot run here."""
    if (path := session.script.opaque) is None:
        return
    if not Path(path).is_file():
        raise SourceError(f"no file '{path}'. Give a Python file that calls foretell.opaque(…).")
    runpy.run_path(path)
    if not DECLARED:
        raise SourceError(f"{path} declares nothing. Let it call foretell.opaque('package.function', …).")


def _adapt_libraries(session: Session) -> None:
    once_imported("datasets.fingerprint", data.hash_anything)
    once_imported("torchvision", lambda module: use_declared_operators())
    once_imported("transformers", lambda module: let_fake_tensors_pass_as_real())


# In this order: what comes later wraps what came before.
_STAND_INS: Final[tuple[Callable[[Session], None], ...]] = (
    _behave_as_gpu, environment.install, moving.install, asserted.install,
    assigned.install, addresses.install, native.install, gpu_builds.install,
    cuda.install, numbered.install,
    old_types.install, lazily.install,
    nvml.install, processes.install, workers.install,
    ddp.install, data_parallel.install, sync_batch_norm.install, fsdp.install, fully_shard.install, deepspeed.install,
    tensor_parallel.install, checkpoints.install, pipelining.install,
    _compute_where_tensors_lie, _declare_operations, kernels.install,
    quantized.install,
    large.install, data.install, empty_sets.install, made_batches.install, more_samples.install, class_weights.install, _follow_steps,
    former.install, former_tables.install,
    former_arguments.install, former_hub.install, former_pictures.install, former_tensors.install, games.install,
    former_modules.install,
    former_names.install, former_methods.install, former_functions.install,
    former_packaging.install, former_python.install, former_language.install,
    former_sounds.install, former_hydra.install, former_vision.install, former_plots.install, former_yaml.install,
    former_lightning.install, texts.install, series_sets.install, tools.install,
    quiet.install,
    missing_files.install,
    trackers.install, account.install, commands.install, likenesses.install, absent.install,
    stand_ins.install, generation.install, repository.install, former_places.install, made_up.install, parsed.install,
    _adapt_libraries,
)  # fmt: skip
