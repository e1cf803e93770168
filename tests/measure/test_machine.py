"""The machine: which device is meant, what is known of it, and the marks that say when to mistrust a measurement."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from foretell.errors import InputError
from foretell.measure import machine
from foretell.measure.machine import Machine, pick_device

HERE = torch.device("cpu")


class Nvml:
    """Answers as NVIDIA's library does; there is none here."""

    class NVMLError(Exception):
        pass

    def __init__(self, *, reasons: int = 0, pids: tuple[int, ...] = (), mute: bool = False) -> None:
        self.reasons, self.pids, self.mute = reasons, pids, mute

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: object) -> int:
        if self.mute:
            raise self.NVMLError("Not Supported")
        return self.reasons

    def nvmlDeviceGetComputeRunningProcesses(self, handle: object) -> list[Any]:
        if self.mute:
            raise self.NVMLError("Insufficient Permissions")
        return [SimpleNamespace(pid=pid) for pid in self.pids]

    def nvmlDeviceGetClockInfo(self, handle: object, kind: int) -> int:
        return {1: 1980, 2: 3201}[kind]

    def nvmlDeviceGetTemperature(self, handle: object, kind: int) -> int:
        return 54


def with_nvml(nvml: Nvml) -> Machine:
    asked = Machine(torch.device("cuda", 0))
    asked.__dict__["nvml"] = (nvml, object())
    asked.__dict__["_fixed"] = {"device": "h200"}
    return asked


class TestMarks:
    def test_none_on_a_quiet_device(self) -> None:
        assert list(with_nvml(Nvml(pids=(os.getpid(),))).marks()) == []

    @pytest.mark.parametrize(
        ("reasons", "message"),
        [
            (0x004, "throttled: power cap"),
            (0x008, "throttled: hardware slowdown"),
            (0x020, "throttled: thermal, software"),
            (0x044, "throttled: power cap, thermal, hardware"),
            (0x080, "throttled: power brake"),
        ],
    )
    def test_a_throttled_device(self, reasons: int, message: str) -> None:
        assert list(with_nvml(Nvml(reasons=reasons)).marks()) == [message]

    @pytest.mark.parametrize("reasons", [0x001, 0x002, 0x100])  # idle, clocks an application set, display clocks
    def test_what_is_no_fault(self, reasons: int) -> None:
        assert list(with_nvml(Nvml(reasons=reasons)).marks()) == []

    def test_others_on_the_device(self) -> None:
        assert list(with_nvml(Nvml(pids=(1, os.getpid()))).marks()) == ["contended: 1 other process on the device"]
        assert list(with_nvml(Nvml(pids=(1, 2))).marks()) == ["contended: 2 other processes on the device"]

    def test_companions_that_wait_do_not_count(self) -> None:
        asked = with_nvml(Nvml(pids=(1, 2)))
        asked.companions = frozenset({1, 2})
        assert list(asked.marks()) == []

    def test_a_driver_that_does_not_say(self) -> None:
        assert list(with_nvml(Nvml(mute=True)).marks()) == []

    @pytest.mark.parametrize(("load", "marked"), [(0.3, False), (2.0, True)])
    def test_a_busy_host(self, load: float, marked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "getloadavg", lambda: (load + torch.get_num_threads(), 0.0, 0.0))
        marks = list(Machine(HERE).marks())
        assert marks == (["contended: others keep 2.0 cores busy"] if marked else [])

    def test_a_host_that_does_not_know_its_load(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def unknown() -> Any:
            raise OSError

        monkeypatch.setattr(os, "getloadavg", unknown)
        assert list(Machine(HERE).marks()) == []


class TestProvenance:
    def test_of_this_machine(self) -> None:
        found = Machine(HERE).provenance()
        assert found["torch"] == torch.__version__
        assert found["host_cores"] == os.cpu_count()
        assert (found["device"], found["driver"], found["cuda"]) == ("", "", "")
        assert found["sm_clock_hz"] is None, "not zero: nobody was asked"
        assert found["occasion"] == machine.OCCASION
        assert Machine(HERE).provenance()["occasion"] == found["occasion"], "one stay, one occasion"

    def test_clocks_and_warmth_of_a_gpu(self) -> None:
        found = with_nvml(Nvml()).provenance()
        assert (found["sm_clock_hz"], found["memory_clock_hz"], found["temperature_celsius"]) == (1.98e9, 3.201e9, 54.0)

    def test_without_nvml(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "pynvml", None)
        monkeypatch.setattr(Machine, "uuid", "GPU-0")
        plain = Machine(torch.device("cuda", 0))
        assert plain.nvml is None
        assert plain.ask("Temperature", 0) is None


class TestPicking:
    def test_the_cpu(self) -> None:
        assert pick_device("cpu") == HERE

    def test_auto_is_what_there_is(self) -> None:
        assert pick_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")

    @pytest.mark.parametrize("wanted", ["gpu", "", "cpu:x", "h200"])
    def test_no_name_of_a_device(self, wanted: str) -> None:
        with pytest.raises(InputError, match="Give auto, cpu, cuda or cuda:N"):
            pick_device(wanted)

    @pytest.mark.parametrize("wanted", ["cuda:64", "xpu", "mps"])
    def test_not_on_this_machine(self, wanted: str) -> None:
        with pytest.raises(InputError, match="is not on this machine, which has cpu"):
            pick_device(wanted)

    def test_by_number(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        assert pick_device("cuda:1") == torch.device("cuda", 1)
        assert pick_device("cuda") == torch.device("cuda", 0)
        with pytest.raises(InputError, match="cuda:0 to cuda:1"):
            pick_device("cuda:2")
