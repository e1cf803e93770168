"""What a script would download: files of their kind in place of it, where their names say what they are."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import urllib.request
from email.message import Message
from typing import Any, Final
from urllib.parse import urlparse
from urllib.response import addinfourl

import torch

from foretell.capture.reads import OWN
from foretell.capture.script.imports import once_imported
from foretell.capture.script.pretend import overlay
from foretell.capture.script.pretend.files import checksums, kinds
from foretell.capture.script.pretend.files.callers import user_frame
from foretell.capture.script.pretend.files.checkpoints import FETCHED, IN_PLACE, Checkpoint
from foretell.capture.script.pretend.files.contents import Contents
from foretell.capture.script.pretend.reading import or_else_offline
from foretell.capture.script.session import Session

_BY_USE: Final = frozenset(".npy .npz .mat .h5 .hdf5 .lmdb".split())
_LOADERS: Final = re.compile(r"site-packages[/\\](transformers|diffusers|sentence_transformers|peft|tokenizers)[/\\]")
# Programs that would fetch something, or change something on this machine.
_PROGRAMS: Final = frozenset(
    "wget curl gdown aria2c gsutil aws git unzip tar rm mv cp mkdir rmdir touch ln chmod kaggle gcloud huggingface-cli hf".split()
)


def install(session: Session, contents: Contents) -> None:
    fetched = _Fetched(session, contents)
    or_else_offline(urllib.request, "urlretrieve", fetched.with_headers)
    or_else_offline(urllib.request, "urlopen", fetched.as_open_file)
    or_else_offline(torch.hub, "download_url_to_file", fetched.to_file)
    once_imported("requests.sessions", lambda m: or_else_offline(m.Session, "request", fetched.as_response))
    once_imported("wget", lambda m: or_else_offline(m, "download", fetched.to_file))
    once_imported("gdown", lambda m: or_else_offline(m, "download", fetched.to_file))
    once_imported("huggingface_hub", lambda m: or_else_offline(m, "hf_hub_download", fetched.of_hub))
    checksums.install()
    _run_no_downloads()


class _Fetched:
    """Files that another machine would have given."""

    def __init__(self, session: Session, contents: Contents) -> None:
        self._session, self._contents = session, contents

    def _bytes(self, name: str) -> bytes | None:
        """What a file of that name has in it; None where it does not say so."""
        if kinds.WEIGHTS.search(name):
            return IN_PLACE
        frame = user_frame()
        made = None if frame is None else self._contents.made(name, binary=True, frame=frame)
        return None if made is None else bytes(made.getvalue())

    def to_file(self, url: Any, filename: Any = None, *args: Any, **kwargs: Any) -> Any:
        name = os.path.basename(urlparse(str(url if not hasattr(url, "full_url") else url.full_url)).path)
        path = os.fspath(filename or kwargs.get("out") or kwargs.get("output") or name)
        path = os.path.join(path, name) if os.path.isdir(path) else path
        FETCHED.add(os.path.abspath(path))
        if kinds.WEIGHTS.search(path) or kinds.WEIGHTS.search(name):
            self._session.stand_in(f"checkpoint {path}")
            torch.save(Checkpoint(), path)
            return path
        data = self._bytes(path) or self._bytes(name)
        if data is None and kinds.ending_of(path) in _BY_USE:
            return path  # it stays missing: whoever reads it says what it is
        if data is None:
            return NotImplemented
        with open(path, "wb") as file:
            file.write(data)
        return path

    def with_headers(self, *args: Any, **kwargs: Any) -> Any:
        path = self.to_file(*args, **kwargs)
        return NotImplemented if path is NotImplemented else (path, {})

    def as_open_file(self, url: Any, *args: Any, **kwargs: Any) -> Any:
        address = getattr(url, "full_url", str(url))
        data = self._bytes(_named(address))
        if data is None:
            return NotImplemented
        headers = Message()
        headers["Content-Length"] = str(len(data))
        return addinfourl(io.BytesIO(data), headers, address, 200)

    def as_response(self, session: Any, method: str, url: Any, *args: Any, **kwargs: Any) -> Any:
        import requests

        data = self._bytes(_named(str(url)))
        if data is None or method.upper() != "GET":
            return NotImplemented
        answer = requests.Response()
        answer.status_code, answer.url, answer.encoding = 200, str(url), "utf-8"
        answer.raw = io.BytesIO(data)
        answer.headers["content-length"] = str(len(data))
        return answer

    def of_hub(self, repo_id: str, filename: str, *args: Any, **kwargs: Any) -> Any:
        if _by_a_library():
            return NotImplemented
        ending = kinds.ending_of(filename)
        if (
            ending == ".json"
        ):  # every part of it counts: whoever reads it hears where to put it, in a folder of its name
            return os.path.abspath(os.path.join(repo_id, filename))
        if ending == ".safetensors":
            self._session.stand_in(f"checkpoint {repo_id}/{filename}")
            return os.path.abspath(os.path.join(repo_id, filename))
        path = os.path.join(overlay.made(os.path.abspath(repo_id.replace("/", "--"))), os.path.basename(filename))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return path if self.to_file(filename, path) is not NotImplemented else NotImplemented


def _named(address: str) -> str:
    """The file behind an address; of one that names none (`/uc?export=download`), that which the script will write."""
    name = os.path.basename(urlparse(address).path)
    frame = None if kinds.ending_of(name) else user_frame()
    given = [] if frame is None else [os.fspath(v) for v in frame.f_locals.values() if isinstance(v, str | os.PathLike)]
    return next((os.path.basename(path) for path in given if "://" not in path and kinds.ending_of(path)), name)


def _by_a_library() -> bool:
    """Whether a library loads a model or tokenizer, which is stood in for as a whole: not by one of its files."""
    frame: Any = sys._getframe(1)
    while frame is not None and (
        frame.f_code.co_filename.startswith(OWN) or "huggingface_hub" in frame.f_code.co_filename
    ):
        frame = frame.f_back
    return frame is not None and bool(_LOADERS.search(frame.f_code.co_filename))


def _run_no_downloads() -> None:
    """Programs that fetch or change files are not started; what they would leave is not there."""
    start, shell = subprocess.Popen.__init__, os.system

    def init(self: Any, args: Any, *rest: Any, **kwargs: Any) -> None:
        if _fetches(args):
            args = "true" if isinstance(args, str) else ["true"]
            kwargs.pop("executable", None)
        start(self, args, *rest, **kwargs)

    subprocess.Popen.__init__ = init  # type: ignore[method-assign]
    os.system = lambda command: 0 if _fetches(command) else shell(command)


def _fetches(command: Any) -> bool:
    if isinstance(command, str | bytes):
        words = os.fsdecode(command).split()
    else:
        words = [os.fsdecode(word) if isinstance(word, str | bytes | os.PathLike) else "" for word in command]
    while words and ("=" in words[0] or words[0] in ("sudo", "cd", "&&")):
        words = words[1:]
    if not words or os.path.basename(words[0]) not in _PROGRAMS:
        return False
    return os.path.basename(words[0]) != "git" or (len(words) > 1 and words[1] in ("clone", "pull", "lfs", "fetch"))
