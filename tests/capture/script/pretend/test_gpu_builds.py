"""A script that is written for the GPU build of a library runs with its build for the host."""

from __future__ import annotations

import types
from pathlib import Path

import pytest

from foretell.capture.script.pretend.gpu_builds import add_faiss
from foretell.capture.script.session import Session
from foretell.sources.scripts import Script


class _Flat:
    def __init__(self, width: int) -> None:
        self.width = width


@pytest.fixture
def faiss(tmp_path: Path) -> types.ModuleType:
    made = types.ModuleType("faiss")
    for name in ("IndexFlatL2", "IndexFlatIP", "IndexFlat"):
        setattr(made, name, type(name, (_Flat,), {}))
    add_faiss(made, Session(Script(path=str(tmp_path / "train.py"))))
    return made


def test_an_index_on_a_gpu_is_one_on_the_host(faiss: types.ModuleType) -> None:
    settings = faiss.GpuIndexFlatConfig()
    settings.device = 0
    resources = faiss.StandardGpuResources()
    resources.setTempMemory(2**20)
    index = faiss.GpuIndexFlatL2(resources, 64, settings)
    assert (type(index), index.width) == (faiss.IndexFlatL2, 64)
    assert faiss.index_cpu_to_gpu(resources, 0, index) is index
    assert faiss.index_cpu_to_all_gpus(index, ngpu=1) is index
    assert faiss.get_num_gpus() == 1


def test_a_build_that_has_them_keeps_its_own(tmp_path: Path) -> None:
    made = types.ModuleType("faiss")
    made.StandardGpuResources = made.GpuIndexFlatL2 = object  # type: ignore[attr-defined]
    add_faiss(made, Session(Script(path=str(tmp_path / "train.py"))))
    assert made.GpuIndexFlatL2 is object
