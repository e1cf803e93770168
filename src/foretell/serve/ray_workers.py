"""The inference engine's workers on a Ray cluster: actors that are spread over its nodes.

    service                          a process of its own            nodes of the cluster
      RayWorkers ── one link ──▶       knows Ray               ──▶     an actor for each worker

Messages are those of `worker.py`, JSON and bytes, so an actor is given nothing that a worker here is not. An actor that is
lost with its node is lost; the engine asks another.
"""

from __future__ import annotations

import base64
import contextlib
import os
import queue
import tempfile
import threading
import time
from concurrent.futures import Future
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from foretell.errors import InputError
from foretell.profile import files_of
from foretell.ray_process import START, RayProcess, answers, check_installed, connect, head_is_gone
from foretell.serve.worker import MEMORY, Bench, answer, pack, unpack
from foretell.supervisor import ChildEnded, bound_memory
from foretell.units import Seconds

_LOOK: Final[Seconds] = 1.0


class RayWorkers:
    """Starts workers on a cluster. One process speaks to it for all of them; where it is lost, the next worker starts another."""

    def __init__(self, address: str, *, silence: Seconds = 20.0) -> None:
        """`silence`: until the head is given up."""
        check_installed("forecasts")
        self._address, self._silence = address, silence
        self._lock = threading.Lock()
        self._speaker: _Speaker | None = None

    def start(self) -> RayWorker:
        """A worker somewhere on the cluster; InputError where the cluster cannot be reached."""
        with self._lock:
            if self._speaker is None or self._speaker.ended:
                self._speaker = _Speaker(self._address, self._silence)
            return RayWorker(self._speaker)

    def close(self) -> None:
        with self._lock:
            if self._speaker is not None:
                self._speaker.close()
                self._speaker = None


class RayWorker:
    """One worker as the engine sees it, like `supervisor.Child`."""

    def __init__(self, speaker: _Speaker) -> None:
        self._speaker = speaker
        self._number, self._heard = speaker.enter()

    def send(self, message: bytes) -> None:
        head, body = unpack(message)
        if head.get("profile"):  # a file here, which nodes have not
            head["files"] = _files(Path(head["profile"]))
        self._speaker.say("ask", self._number, pack(head, body))

    def receive(self, limit: Seconds) -> bytes:
        try:
            heard = self._heard.get(timeout=limit)
        except queue.Empty:
            raise TimeoutError from None
        if isinstance(heard, ChildEnded):
            self._heard.put(heard)  # there will be nothing else
            raise heard
        return heard

    @property
    def has_ended(self) -> bool:
        return self._speaker.ended or not self._heard.empty()  # it answers nobody: that it was lost

    def close(self) -> None:
        self._speaker.leave(self._number)


class _Speaker:
    """The process that knows Ray, and who waits for what it hears."""

    def __init__(self, address: str, silence: Seconds) -> None:
        self.ended = False
        self._gone = ChildEnded(f"was lost: {head_is_gone(address).rstrip('.')}", "")
        self._numbers = count()
        self._waiting: dict[int, queue.SimpleQueue[bytes | ChildEnded]] = {}
        self._lock = threading.Lock()
        self._process = RayProcess("foretell.serve.ray_workers:serve")
        self._link = self._process.link
        self._link.send_bytes(pack({"address": address, "silence": silence}))
        reply = unpack(self._link.recv_bytes())[0] if self._link.poll(START) else {"error": head_is_gone(address)}
        if "error" in reply:
            self._process.close()
            raise InputError(reply["error"])
        threading.Thread(target=self._listen, name="foretell-ray", daemon=True).start()

    def enter(self) -> tuple[int, queue.SimpleQueue[bytes | ChildEnded]]:
        heard: queue.SimpleQueue[bytes | ChildEnded] = queue.SimpleQueue()
        with self._lock:
            number = next(self._numbers)
            self._waiting[number] = heard
        self.say("start", number)
        return number, heard

    def leave(self, number: int) -> None:
        with self._lock:
            self._waiting.pop(number, None)
        with contextlib.suppress(ChildEnded):
            self.say("end", number)

    def say(self, what: str, number: int = 0, body: bytes = b"") -> None:
        try:
            with self._lock:
                self._link.send_bytes(pack({"do": what, "worker": number}, body))
        except OSError:
            raise self._gone from None

    def close(self) -> None:
        with contextlib.suppress(ChildEnded):
            self.say("over")  # it ends, and so does the thread that listens to it
        self._process.close()

    def _listen(self) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                reply, body = unpack(self._link.recv_bytes())
                with self._lock:
                    waits = self._waiting.get(reply["worker"])
                if waits is not None:
                    waits.put(ChildEnded(reply["lost"], "") if "lost" in reply else body)
        self.ended = True
        with self._lock:
            for waits in self._waiting.values():
                waits.put(self._gone)


def _files(profile: Path) -> dict[str, str]:
    """A profile and what lies beside it, as JSON can hold it."""
    return {path.name: base64.b64encode(path.read_bytes()).decode() for path in files_of(profile)}


# The process that Ray runs in


def serve(link: Connection) -> None:
    setup, _ = unpack(link.recv_bytes())
    try:
        ray = connect(setup["address"])
    except InputError as error:
        link.send_bytes(pack({"error": str(error)}))
        return
    link.send_bytes(pack({}))
    head = ray.get_runtime_context().gcs_address
    threading.Thread(target=_end_with_head, args=(head, setup["silence"]), daemon=True).start()
    actors = _Actors(ray, link)
    with contextlib.suppress(EOFError, OSError):  # the service is gone
        while (message := unpack(link.recv_bytes()))[0]["do"] != "over":
            actors.take(message[0]["do"], message[0]["worker"], message[1])
    ray.shutdown()


def _end_with_head(head: str, silence: Seconds) -> None:
    heard = time.monotonic()
    while time.monotonic() - heard < silence:
        time.sleep(_LOOK)
        if answers(head):
            heard = time.monotonic()
    os._exit(1)  # Ray would wait for it in vain


class _Actors:
    def __init__(self, ray: Any, link: Connection) -> None:
        self._ray, self._link = ray, link
        self._lock = threading.Lock()
        # One processor to be placed, none to stay: a search for plans finds its processors free.
        self._kind = ray.remote(scheduling_strategy="SPREAD")(Desk)
        self._desks: dict[int, Any] = {}

    def take(self, do: str, worker: int, body: bytes) -> None:
        if do == "start":
            self._desks[worker] = self._kind.remote()
            self._tell(worker, self._desks[worker].ready.remote())
        elif do == "ask":
            self._tell(worker, self._desks[worker].answer.remote(body))
        elif worker in self._desks:
            self._ray.kill(self._desks.pop(worker))

    def _tell(self, worker: int, answer: Any) -> None:
        future: Future[bytes] = answer.future()
        future.add_done_callback(lambda done: self._say(worker, done))

    def _say(self, worker: int, done: Future[bytes]) -> None:
        error = done.exception()
        if error is None:
            message = pack({"worker": worker}, done.result())
        else:
            last = (str(error).strip().splitlines() or [type(error).__name__])[-1][:300]
            message = pack({"worker": worker, "lost": f"was lost on the Ray cluster: {last}"})
        with self._lock, contextlib.suppress(OSError):
            self._link.send_bytes(message)


class Desk:
    """The actor: a worker's bench on some node, within a worker's limits."""

    def __init__(self) -> None:
        from foretell.cost.model import load_model
        from foretell.forecasting.forecast import forecast  # noqa: F401  (loaded before the first question)

        load_model()
        bound_memory(MEMORY)
        self._bench = Bench()

    def ready(self) -> bytes:
        return b"ready"

    def answer(self, message: bytes) -> bytes:
        head, body = unpack(message)
        with tempfile.TemporaryDirectory(prefix="foretell-profile-") as folder:
            for name, data in head.pop("files", {}).items():
                (Path(folder) / Path(name).name).write_bytes(base64.b64decode(data))
            if head.get("profile"):
                head["profile"] = str(Path(folder) / Path(head["profile"]).name)
            return answer(self._bench, head, body)
