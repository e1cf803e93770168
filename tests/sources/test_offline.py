"""What a configuration from a stranger cannot do: contact another machine."""

from __future__ import annotations

import json
import socket
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from foretell.errors import SourceError
from foretell.sources.offline import kept_offline
from foretell.sources.resolve import load_workload
from foretell.workload import Workload

ELSEWHERE = "192.0.2.1"  # an address that is nobody's


def make(model: Callable[[], Any]) -> Workload:
    return Workload(name="x", model=model, batch=lambda: torch.randn(2), loss=lambda model, x: x)


@pytest.mark.parametrize(
    "contact",
    [
        lambda: socket.create_connection((ELSEWHERE, 80), timeout=0.01),
        lambda: socket.getaddrinfo("example.com", 80),
        lambda: socket.socket(type=socket.SOCK_DGRAM).sendto(b"x", (ELSEWHERE, 80)),
        lambda: urllib.request.urlopen(f"http://{ELSEWHERE}/x.pth", timeout=0.01),
    ],
)
def test_no_connection_is_made(contact: Callable[[], Any]) -> None:
    workload = kept_offline("model/config.json", lambda: make(contact))()
    with pytest.raises(
        SourceError, match=r"config\.json asks for a connection to .*, and names and configurations are built"
    ):
        workload.model()
    with pytest.raises(SourceError, match="asks for a connection"):
        kept_offline("config.json", lambda: contact() and make(contact))()


def test_this_machine_may_be_contacted_and_so_may_others_outside() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        workload = kept_offline("config.json", lambda: make(lambda: socket.create_connection(server.getsockname())))()
        workload.model().close()
        with socket.socket(type=socket.SOCK_DGRAM) as there, pytest.raises(OSError, match="Message too long"):
            there.sendto(bytes(100_000), (ELSEWHERE, 80))  # refused by the system, not by us


def test_other_failures_are_what_they_are() -> None:
    with pytest.raises(ZeroDivisionError):
        kept_offline("config.json", lambda: make(lambda: 1 // 0))().model()


def test_a_configuration_that_names_a_backbone(tmp_path: Path) -> None:
    config = {
        "architectures": ["UperNetForSemanticSegmentation"],
        "backbone": "nobody/has-this",
        "model_type": "upernet",
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(SourceError, match="asks for a file of the Hugging Face hub that is not on this machine"):
        load_workload(str(tmp_path / "config.json"), {"batch": "1"})
