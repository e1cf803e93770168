"""The Dockerfile's steps, one after the other, by hand: there may be no engine here. Folders of the image are in one of ours.

Packages that the image gets from an index are those of this interpreter; what the step itself installs is built and installed.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

pytestmark = pytest.mark.nightly
ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "deploy" / "Dockerfile"
# pip's own settings: the same command, without an index.
OFFLINE = {"PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_QUIET": "1"}
BUILDERS = ("hatchling", "packaging", "pathspec", "pluggy", "trove_classifiers")  # what builds the package


def steps(text: str) -> list[tuple[str, str]]:
    """Instructions and what follows them, lines that go on joined."""
    lines = re.sub(r"\\\n", " ", re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE)).splitlines()
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines if line.strip())]


@dataclass
class Image:
    """What an engine would make, in a folder."""

    root: Path
    folder: Path = field(init=False)
    environment: dict[str, str] = field(default_factory=dict)
    user: int | None = None  # ours may not be allowed to be somebody else, nor somebody else to run our interpreter
    entry: list[str] = field(default_factory=list)
    check: list[str] = field(default_factory=list)

    def here(self, text: str) -> str:
        """Absolute paths of the image in ours."""
        return re.sub(r"(?<![\w.:/-])/(?=(?:opt|src|var)\b)", f"{self.root}/", text)

    def take(self, word: str, rest: str) -> None:
        match word:
            case "FROM":
                self.folder = self.root
            case "WORKDIR":
                self.folder = Path(self.here(rest))
                self.folder.mkdir(parents=True, exist_ok=True)
            case "COPY" if not rest.startswith("--from"):  # stages share the folder
                *names, where = rest.split()
                for name in names:
                    source, target = ROOT / name, self.folder / where
                    if source.is_dir():
                        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
                    else:
                        shutil.copy(source, target)
            case "RUN":
                if "useradd" in rest:
                    rest = self._add_user(rest)
                run = subprocess.run(
                    self.here(rest), shell=True, cwd=self.folder, capture_output=True, text=True, timeout=600, check=False,
                    env=self._building(),
                )  # fmt: skip
                assert run.returncode == 0, f"{rest}\n{run.stdout}{run.stderr}"
            case "ENV":
                self.environment |= dict(pair.split("=", 1) for pair in shlex.split(self.here(rest)))
            case "USER":
                self.user = int(rest)
            case "ENTRYPOINT":
                self.entry = json.loads(rest)
            case "HEALTHCHECK":
                self.check = json.loads(rest.partition("CMD ")[2])

    def _building(self) -> dict[str, str]:
        """Without an index; of other packages the few that pip would fetch to build ours."""
        folder = self.root / "builders"
        if not folder.exists():
            folder.mkdir()
            for name in BUILDERS:
                (folder / name).symlink_to(Path(sysconfig.get_path("purelib")) / name)
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        return os.environ | OFFLINE | {"PATH": path, "PYTHONPATH": str(folder)}

    def _add_user(self, command: str) -> str:
        """Into files of the image's own."""
        (self.root / "etc").mkdir()
        for name in ("passwd", "group", "shadow", "gshadow"):
            (self.root / "etc" / name).touch()
        if os.geteuid() or not shutil.which("useradd"):
            return f"mkdir -p {self.root}/var/lib/foretell"
        (self.root / "var" / "lib").mkdir(parents=True)
        return command.replace("useradd", f"PATH=$PATH:/usr/sbin useradd --prefix {self.root}").replace(
            "/var/lib", "'/'var/lib"
        )

    def start(self, *arguments: str, **said: str) -> subprocess.Popen[str]:
        environment = self.environment | {"HOME": str(self.root / "var/lib/foretell"), "LANG": "C.UTF-8"} | said
        environment["PATH"] = environment["PATH"].replace("$PATH", os.environ["PATH"])
        return subprocess.Popen(
            [str(shutil.which(self.entry[0], path=environment["PATH"])), *self.entry[1:], *arguments],
            cwd=self.root / "var/lib/foretell", env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    made = Image(tmp_path_factory.mktemp("image"))
    for word, rest in steps(DOCKERFILE.read_text()):
        made.take(word, rest)
    packages = next((made.root / "opt/foretell/lib").glob("python*/site-packages"))
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"))  # what an index would have given
    state = made.root / "var/lib/foretell"
    if os.geteuid() == 0:
        assert f"foretell:x:{made.user}:" in (made.root / "etc/passwd").read_text()
        assert state.stat().st_uid == made.user, "the state belongs to the image's user"
    return made


def test_the_image_has_all_that_pages_and_migrations_need(image: Image) -> None:
    packages = next((image.root / "opt/foretell/lib").glob("python*/site-packages"))
    for folder in ("serve", "report", "hardware", "cost"):
        wanted = {
            path.relative_to(ROOT / "src") for path in (ROOT / "src/foretell" / folder).rglob("*") if path.is_file()
        }
        missing = [path for path in wanted if "__pycache__" not in path.parts and not (packages / path).is_file()]
        assert missing == []


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_the_image_serves_beside_its_postgresql(image: Image, database_url: str) -> None:
    """As compose.yaml has it: a key first, then the service, which its own check finds healthy, then an end in order."""
    composed = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())["services"]["foretell"]["environment"]
    said = composed | {"FORETELL_DATABASE": database_url, "FORETELL_SERVE_WORKERS": "1"}
    assert set(said) == set(composed)
    refused = image.start(**said)
    assert refused.wait(300) == 2
    assert "no keys yet" in refused.communicate()[1]
    key = image.start("key", "research", **said)
    secret, words = key.communicate(timeout=300)
    assert (key.returncode, secret[:4]) == (0, "ftl_"), words
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    service = image.start(**said | {"FORETELL_SERVE_PORT": port})
    try:
        assert service.stdout is not None
        assert f"http://0.0.0.0:{port}" in service.stdout.readline()
        check = [sys.executable, *(part.replace("8760", port) for part in image.check[1:])]
        ends = time.monotonic() + 300
        while (code := subprocess.run(check, capture_output=True, check=False).returncode) and time.monotonic() < ends:
            time.sleep(0.2)
        assert code == 0, "the image's own check finds it healthy"
    finally:
        service.send_signal(signal.SIGTERM)
        assert service.wait(300) in (0, -signal.SIGTERM), service.communicate()[1]
