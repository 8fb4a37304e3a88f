"""Several ranks of real NCCL on one GPU, one thread for each, in this process.

A process that holds ranks may hang beyond repair; it is meant to be a child (worker.py) that a parent can end.
"""

from __future__ import annotations

import ctypes as c
import os
import shutil
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from device import Device, HungError
from messages import arguments, numpy_type, received_count, sent, wrong_elements
from nccl import Library, NcclCallError
from recipes import Recipe

from ncclt.core.message import DTYPE_SIZES, Message

SETTABLE = ("BUFFSIZE", "NTHREADS", "LL128_NTHREADS", "MIN_CTAS", "SOCKET_NTHREADS", "NSOCKS_PERTHREAD")
"""Parameters that a new copy of the library reads anew. Their variables exist from the start, if empty, which NCCL
takes as not set: so setting one only replaces a value, which is safe while threads of NCCL look others up."""

Parameters = tuple[tuple[str, int], ...]

_POISON = 0xA5
_IN_PROGRESS = 7
_GRACE_S = 5.0

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How often a message is sent.

    Attributes:
        samples: times that are taken.
        sample_us: how long one sample shall last, µs; it is the mean of the calls in it.
        most_calls: in one sample.
    """

    samples: int = 5
    sample_us: float = 20_000.0
    most_calls: int = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """One message, measured.

    Attributes:
        samples_us: mean time of a call, the slowest rank's, one per sample.
        wrong: elements that came out wrong, before and after the timing, on all ranks.
        issue_us: what one call kept a rank's host thread busy; near the time itself, the GPU was waiting for Python.
    """

    samples_us: tuple[float, ...]
    wrong: int
    issue_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rank:
    library: Library
    communicator: c.c_void_p


class Ranks:
    """Ranks of one recipe; for every set of parameters communicators of their own, opened when first needed.

    All of them stay open, so that a setting and the default can be measured in turn within milliseconds.

    Args:
        device: the GPU.
        source: libnccl.so.2.
        recipe: how the ranks share the GPU.
        count: ranks.
        scratch: folder for copies of the library and NCCL's logs.
        room_bytes: size of the largest message.
        deadline: of time.monotonic().
    """

    def __init__(
        self,
        device: Device,
        source: Path,
        recipe: Recipe,
        *,
        count: int,
        scratch: Path,
        room_bytes: int,
        deadline: float,
    ) -> None:
        self._device = device
        self._source = source
        self._recipe = recipe
        self._count = count
        self._scratch = scratch
        self._room_bytes = room_bytes
        self._open: dict[Parameters, list[_Rank]] = {}
        self._used: list[_Rank] = []
        self._threads = [ThreadPoolExecutor(1, f"rank{number}") for number in range(count)]
        self._meeting = threading.Barrier(count)
        self._deadline = deadline
        self._failure = ""
        self._dtype = ""
        self._each(lambda _number: device.enter())
        self._buffers = [(device.allocate(room_bytes), device.allocate(room_bytes)) for _ in range(count)]
        self._streams = [device.stream() for _ in range(count)]
        self._events = [(device.event(), device.event()) for _ in range(count)]

    def use(self, parameters: Parameters, *, deadline: float) -> None:
        """Send what follows over communicators that read these parameters; open them unless they are.

        Raises:
            NcclCallError, HungError: NCCL would not.
        """
        self._deadline = deadline
        if parameters not in self._open:
            self._open[parameters] = self._opened(parameters)
        self._used = self._open[parameters]

    def measure(self, message: Message, timing: Timing, *, deadline: float) -> Taken:
        """Check a message, time it, and check it again.

        Raises:
            NcclCallError, HungError: a call failed or did not end; then these ranks are lost.
        """
        wrong = self.check(message, deadline=deadline)
        rough_us = max(max(time_us for time_us, _issue in self._timed(message, 1)), 1.0)
        calls = max(1, min(timing.most_calls, int(timing.sample_us / rough_us)))
        samples = [self._timed(message, calls) for _ in range(timing.samples)]
        wrong += self.check(message, deadline=deadline)
        return Taken(
            samples_us=tuple(max(time_us for time_us, _issue in sample) for sample in samples),
            wrong=wrong,
            issue_us=statistics.median(max(issue for _time, issue in sample) for sample in samples),
        )

    def check(self, message: Message, *, deadline: float) -> int:
        """Send a message once over poisoned buffers; return how many elements came out wrong on all ranks."""
        self._deadline = deadline
        if message.dtype != self._dtype:
            self._each(lambda number: self._fill(number, message.dtype))
            self._dtype = message.dtype
        self._each(lambda number: self._send_once(number, message))
        return sum(self._each(lambda number: self._wrong(number, message)))

    def abort(self) -> None:
        """Tell NCCL to give every communicator up; may hang itself."""
        for rank in (rank for ranks in self._open.values() for rank in ranks):
            rank.library.call("ncclCommAbort", rank.communicator)

    def close(self, *, deadline: float) -> None:
        """Close all communicators, so that a plugin writes its reports."""
        self._deadline = deadline
        for ranks in self._open.values():
            self._used = ranks
            self._each(lambda at: self._used[at].library.call("ncclCommDestroy", self._used[at].communicator))
        self._open.clear()
        for thread in self._threads:
            thread.shutdown()

    def _opened(self, parameters: Parameters) -> list[_Rank]:
        for name in SETTABLE:
            os.environ[f"NCCL_{name}"] = str(dict(parameters).get(name, ""))
        libraries = self._copies(len(self._open))
        unique = libraries[0].unique_id()
        opened = self._each(lambda number: libraries[number].communicator(unique, ranks=self._count, rank=number))
        return [
            _Rank(library=library, communicator=communicator)
            for library, communicator in zip(libraries, opened, strict=True)
        ]

    def _copies(self, turn: int) -> list[Library]:
        """Return the library of every rank: a fresh copy for each, or one for all, which then has read everything."""
        libraries = []
        for number in range(self._count if self._recipe.copies else 1):
            path = self._scratch / f"libnccl-{turn}-{number}.so"
            shutil.copyfile(self._source, path)
            # Read by this copy in its first calls and kept for good; two copies must not write one log.
            if self._recipe.copies:
                os.environ["NCCL_HOSTID"] = f"ncclt-host-{number}"
            os.environ["NCCL_DEBUG_FILE"] = str(self._scratch / f"nccl-{turn}-{number}.log")
            library = Library(path)
            path.unlink()  # it stays mapped; the next copy is another file all the same
            self._fix_host(library)
            libraries.append(library)
        return libraries if self._recipe.copies else libraries * self._count

    def _fix_host(self, library: Library) -> None:
        """Open and close a communicator of one rank: only that reads the host's id (nccl.md, 2.6)."""

        def alone(number: int) -> None:
            if number == 0:
                communicator = library.communicator(library.unique_id(), ranks=1, rank=0)
                library.call("ncclCommDestroy", communicator)

        self._each(alone)

    def _fill(self, number: int, dtype: str) -> None:
        width = DTYPE_SIZES[dtype]
        self._device.write(self._buffers[number][0], sent(number, self._room_bytes // width, dtype))

    def _send(self, number: int, message: Message) -> Callable[[], None]:
        """Return the one call, with everything looked up before."""
        name, extra = arguments(message, self._count)
        rank, (send, receive) = self._used[number], self._buffers[number]
        values = (send, receive, *extra, rank.communicator, self._streams[number])
        return lambda: rank.library.call(name, *values)

    def _send_once(self, number: int, message: Message) -> None:
        self._device.fill(self._buffers[number][1], message.size_bytes, _POISON, self._streams[number])
        self._meeting.wait(self._left_s())
        self._send(number, message)()
        self._wait(number)

    def _timed(self, message: Message, calls: int) -> list[tuple[float, float]]:
        """Return every rank's mean time of a call, and how long one kept the host, both µs."""
        return self._each(lambda number: self._time_one(number, message, calls))

    def _time_one(self, number: int, message: Message, calls: int) -> tuple[float, float]:
        send, stream, (start, stop) = self._send(number, message), self._streams[number], self._events[number]
        self._meeting.wait(self._left_s())
        send()  # it ends on all ranks at once, so that the clocks of the next ones start together
        self._device.record(start, stream)
        issued_s = -time.perf_counter()
        for _ in range(calls):
            send()
        issued_s += time.perf_counter()
        self._device.record(stop, stream)
        self._wait(number)
        return self._device.elapsed_us(start, stop) / calls, issued_s * 1e6 / calls

    def _wrong(self, number: int, message: Message) -> int:
        count = received_count(message, number, self._count)
        received = self._device.read(self._buffers[number][1], count, numpy_type(message.dtype))
        return wrong_elements(received, message, number, self._count) if count else 0

    def _wait(self, number: int) -> None:
        rank = self._used[number]

        def failed() -> str:
            code = rank.library.async_error(rank.communicator)
            return self._failure or (f"NCCL's asynchronous error {code}" if code not in (0, _IN_PROGRESS) else "")

        self._device.wait(self._streams[number], deadline=self._deadline, failed=failed)

    def _left_s(self) -> float:
        return max(0.0, self._deadline - time.monotonic())

    def _each(self, action: Callable[[int], _Result]) -> list[_Result]:
        """Do something on every rank's thread at once and return the results.

        Raises:
            HungError: not all of them ended in time. Their threads are lost.
            Exception: the first that one of them raised.
        """
        futures: list[Future[_Result]] = [thread.submit(action, number) for number, thread in enumerate(self._threads)]
        done, unfinished = wait(futures, timeout=self._left_s() + _GRACE_S, return_when=FIRST_EXCEPTION)
        broken = next((error for future in done if (error := future.exception())), None)
        if broken is not None:
            # The others wait for the one that failed: on the GPU, at the barrier, or for good inside NCCL.
            self._failure = str(broken)
            self._meeting.abort()
            wait(unfinished, timeout=_GRACE_S)
            raise self._cause(futures) or broken
        if unfinished:
            raise HungError("a call of NCCL did not return in time")
        return [future.result() for future in futures]

    @staticmethod
    def _cause(futures: Sequence[Future[_Result]]) -> BaseException | None:
        """Return the error of NCCL itself, where there is one: the others follow from it."""
        errors = [error for future in futures if future.done() and (error := future.exception())]
        return next((error for error in errors if isinstance(error, NcclCallError)), None)
