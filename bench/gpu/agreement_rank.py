"""One rank of real NCCL, alone in its process: tells each thing that it does before and after, one JSON line each.

Meant to be started, watched and ended by agreement.py: the last line of a rank that hangs says where.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from device import Device, HungError
from messages import arguments, numpy_type, sent, wrong_elements
from nccl import Library, NcclCallError, UniqueId

from ncclt.core.message import Collective, Message

DEFAULTS = {"sizes": [1 << 20], "memory_at": [], "fill_at": -1, "leave_free_mib": 0, "linger_s": 0.0}
"""What a rank does where it is not told: sizes of its calls in turn, before and after which of them memory is read,
before which of them rank 0 fills the GPU but for some MiB, how long a rank stays whose init failed."""

_POLL_S = 0.005


def say(event: str, **more: Any) -> None:
    print(json.dumps({"event": event, "at_s": round(time.monotonic(), 4), **more}), flush=True)


class Meeting:
    """Ranks that wait for each other by files in one folder."""

    def __init__(self, folder: Path, rank: int, ranks: int, limit_s: float) -> None:
        self._folder, self._rank, self._ranks, self.limit_s = folder, rank, ranks, limit_s

    def meet(self, name: str) -> bool:
        """Wait until all ranks have come; return whether they did in time."""
        self.leave(f"{name}-{self._rank}", b"")
        return all(self.take(f"{name}-{rank}") is not None for rank in range(self._ranks))

    def leave(self, name: str, content: bytes) -> None:
        part = self._folder / f".{name}"
        part.write_bytes(content)
        part.rename(self._folder / name)

    def take(self, name: str) -> bytes | None:
        """Return what a rank left, None if it came not in time."""
        deadline = time.monotonic() + self.limit_s
        while not (self._folder / name).exists():
            if time.monotonic() > deadline:
                return None
            time.sleep(_POLL_S)
        return (self._folder / name).read_bytes()


def run(told: dict[str, Any]) -> int:
    rank, ranks, limit_s = told["rank"], told["ranks"], told["limit_s"]
    meeting = Meeting(Path(told["folder"]), rank, ranks, 30.0)
    device = Device(Path(told["cuda"]) if told["cuda"] else None)
    library = Library(Path(told["nccl"]))
    size = max(told["sizes"])
    send, receive, stream = device.allocate(size), device.allocate(size), device.stream()
    message = {one: Message(collective=Collective.ALL_REDUCE, dtype="float32", size_bytes=one) for one in told["sizes"]}
    device.write(send, sent(rank, size // 4, "float32"))
    if rank == 0:
        meeting.leave("id", bytes(library.unique_id()))
    given = meeting.take("id")
    if given is None or not meeting.meet("ready"):
        say("alone")
        return 4
    meeting.limit_s = limit_s
    say("init begins", free_mib=_free_mib(device), nccl=library.version())
    began = time.monotonic()
    try:
        communicator = library.communicator(UniqueId.from_buffer_copy(given), ranks=ranks, rank=rank)
    except NcclCallError as error:
        say("init failed", ms=_ms(began), code=error.code, text=str(error))
        time.sleep(told["linger_s"])
        return 3
    say("init done", ms=_ms(began))
    if told["memory_at"]:
        meeting.meet("open")
        say("memory", step=-1, free_mib=_free_mib(device))
    for step in range(told["calls"]):
        one = message[told["sizes"][step % len(told["sizes"])]]
        name, more = arguments(one, ranks)
        device.fill(receive, one.size_bytes, 0xA5, stream)
        seen = step in told["memory_at"]
        if seen:
            meeting.meet(f"before-{step}")
            if rank == 0 and step == told["fill_at"]:
                device.allocate(device.free_bytes() - (told["leave_free_mib"] << 20))
            meeting.meet(f"filled-{step}")
            say("memory", step=step, before=True, free_mib=_free_mib(device))
        say("call begins", step=step)
        began = time.monotonic()
        try:
            library.call(name, send, receive, *more, communicator, stream)
            issued_ms = _ms(began)
            say("call issued", step=step)
            device.wait(stream, deadline=time.monotonic() + limit_s, failed=lambda: _failed(library, communicator))
        except (NcclCallError, HungError) as error:
            say("call failed", step=step, ms=_ms(began), text=str(error))
            return 5
        took_ms = _ms(began)
        wrong = wrong_elements(device.read(receive, one.size_bytes // 4, numpy_type("float32")), one, rank, ranks)
        say("call done", step=step, size_bytes=one.size_bytes, issued_ms=issued_ms, ms=took_ms, wrong=wrong)
        if seen:
            meeting.meet(f"after-{step}")
            say("memory", step=step, before=False, free_mib=_free_mib(device))
    meeting.meet("done")
    say("destroy begins")
    library.call("ncclCommDestroy", communicator)
    say("end")
    return 0


def _failed(library: Library, communicator: Any) -> str:
    code = library.async_error(communicator)
    return f"NCCL's asynchronous error {code}" if code not in (0, 7) else ""


def _free_mib(device: Device) -> float:
    return round(device.free_bytes() / (1 << 20), 1)


def _ms(began: float) -> float:
    return round(1e3 * (time.monotonic() - began), 2)


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    # A kernel that hangs would keep an orderly exit waiting for ever.
    os._exit(run({**DEFAULTS, **json.loads(sys.argv[1])}))
