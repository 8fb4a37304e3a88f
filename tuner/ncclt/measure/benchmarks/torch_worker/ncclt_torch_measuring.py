"""Measures one message with PyTorch: sends it, times it, and checks every element.

Shipped beside `ncclt_torch_worker.py`, which starts it; like that it needs only Python 3.9 and PyTorch 2.6.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import random
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch

WARMUP_CALLS = 5  # first calls connect ranks, allocate and load kernels
ALIGN_CALLS = 2  # ranks leave an agreement some 100 µs apart; these calls absorb that
FIRST_BATCH, MOST_SAMPLES = 8, 256
LEAST_CALLS = 2  # timed where a message is too slow to win and a first batch would exceed the budget
PRECISION = 0.02  # both ends of the interval of the median are within this share of it
PERIOD = 4093  # of the numbers that are sent: prime, so that data shifted by a power of two are detected
POISON = 127  # a value that no element is expected to have
HASHED_BYTES = 1 << 22  # at once: as 64-bit numbers they take eight times the memory
HASH_FACTOR = -7046029254386353131  # 2^64 / golden ratio as a signed number: multiplicative hashing (Knuth)


class MeasuredMessage(NamedTuple):
    """One message: `elements` of a torch dtype in each part of the buffer (all_gather has one part per rank, ...)."""

    collective: str
    dtype: str
    elements: int
    group_size: int
    across: bool

    @classmethod
    def parse(cls, word: str) -> MeasuredMessage:
        """Read `all_reduce:float32:4232978:8`, followed by `:across` if the group spans nodes."""
        collective, dtype, elements, group_size, *across = word.split(":")
        if across not in ([], ["across"]):
            raise ValueError(f"{word} is not a message")
        return cls(collective, dtype, int(elements), int(group_size), bool(across))


class MeasuredGroup(NamedTuple):
    """This rank's group of one kind; `ranks` are global ranks, `me` is this rank's index among them."""

    handle: Any
    ranks: list[int]
    me: int


@functools.lru_cache(maxsize=None)  # noqa: UP033  as Python 3.9 has it
def number_tables(ranks: int) -> tuple[list[int], list[int]]:
    """Return random numbers, and their sums over `ranks` ranks, of which rank r starts at the r-th number.

    With 0 ranks nothing is added up. All sums and partial sums stay below 127, so they are exact in every dtype and
    every order of addition (bfloat16 has 8 bits, int8 has 7): with many ranks most numbers are 0.
    """
    table, thinning = random.Random(PERIOD).choices(range(4 if ranks else POISON), k=PERIOD), 1
    while True:
        before = [0, *itertools.accumulate(table * (ranks // PERIOD + 2))]
        sums = [before[i + ranks] - before[i] for i in range(PERIOD)]
        if max(sums) < POISON:
            return table, sums
        thinning *= 2
        table = [number if i % thinning == 0 else 0 for i, number in enumerate(table)]


@functools.lru_cache(maxsize=None)  # noqa: UP033  as Python 3.9 has it
def inexact_numbers() -> list[float]:
    """Return random numbers whose sums depend on the order of additions in every floating-point dtype."""
    dice = random.Random(PERIOD)
    return [dice.uniform(-1, 1) for _ in range(PERIOD)]


class MessageBuffers:
    """The buffers of one message on this rank, how it is sent, and the expected result."""

    def __init__(self, message: MeasuredMessage, group: MeasuredGroup, device: torch.device) -> None:
        import torch

        me, ranks, self._part = group.me, range(len(group.ranks)), message.elements
        everyone = [me * len(ranks) + rank for rank in ranks], [rank * len(ranks) + me for rank in ranks]
        # Where in the table begins each part that is sent, and each that is expected.
        begins, expected = {
            "all_reduce": ([me], [0]),
            "reduce": ([me], [] if me else [0]),
            "broadcast": ([] if me else [0], [0]),
            "all_gather": ([me], [*ranks]),
            "reduce_scatter": ([me + rank * self._part for rank in ranks], [me * self._part]),
            "all_to_all": everyone,
            "send_recv": ([me], [(me - 1) % len(ranks)]),
        }[message.collective]
        self._begins, self._expected = begins, expected
        sums_up, in_place = "reduce" in message.collective, message.collective in ("all_reduce", "reduce", "broadcast")
        table, sums = number_tables(len(ranks) if sums_up else 0)
        options: dict[str, Any] = {"dtype": getattr(torch, message.dtype), "device": device}
        self._table, self._sums = torch.tensor(table, **options), torch.tensor(sums if sums_up else table, **options)
        inexact = sums_up and self._table.is_floating_point()
        self._inexact = torch.tensor(inexact_numbers(), **options) if inexact else self._table
        self._received = torch.empty(max(len(expected), 1) * self._part, **options)
        self._sent = self._received if in_place else torch.empty(len(begins) * self._part, **options)
        self.call = _call(message.collective, self._received, self._sent, group)

    def fill(self, *, inexact: bool = False) -> None:
        """Fill the buffer to send, and poison the one to receive; inexact numbers show the order of additions."""
        self._received.fill_(POISON)
        for number, begin in enumerate(self._begins):
            numbers = self._numbers(self._inexact if inexact else self._table, begin)
            self._sent[number * self._part :][: self._part] = numbers

    def wrong(self) -> int:
        """Count the elements on this rank that are not as expected."""
        parts = self._received.split(self._part)  # type: ignore[no-untyped-call]
        return sum(int((parts[i] != self._numbers(self._sums, begin)).sum()) for i, begin in enumerate(self._expected))

    def hash_bits(self) -> str:
        """Return a hash of the bits that this rank has received; on all devices the same for the same bits."""
        import torch

        total = torch.zeros((), dtype=torch.int64, device=self._received.device)
        received = self._received[: len(self._expected) * self._part].view(torch.uint8)
        for piece in received.split(HASHED_BYTES):  # type: ignore[no-untyped-call]
            place = torch.arange(1, len(piece) + 1, dtype=torch.int64, device=piece.device) * HASH_FACTOR
            weights = (place ^ (place >> 31)) * HASH_FACTOR
            total = total * HASH_FACTOR + (weights * (piece.to(torch.int64) + 1)).sum()
        return f"{int(total) & (2**64 - 1):016x}"

    def _numbers(self, table: torch.Tensor, begin: int) -> torch.Tensor:
        return table.roll(-(begin % PERIOD)).repeat(-(-self._part // PERIOD))[: self._part]


def _call(collective: str, received: torch.Tensor, sent: torch.Tensor, group: MeasuredGroup) -> Callable[[], Any]:
    import torch.distributed as dist

    handle, root, me = group.handle, group.ranks[0], group.me
    # torch 2.13 renamed these two and warns about the old names.
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

    def exchange() -> None:
        # Around a ring, as sendrecv_perf does; in one batch, so that no order of ranks can deadlock.
        to, source = group.ranks[(me + 1) % len(group.ranks)], group.ranks[me - 1]
        operations = [dist.P2POp(dist.isend, sent, to, handle), dist.P2POp(dist.irecv, received, source, handle)]
        for work in dist.batch_isend_irecv(operations):
            work.wait()

    return {
        "all_reduce": lambda: dist.all_reduce(received, group=handle),
        "reduce": lambda: dist.reduce(received, root, group=handle),
        "broadcast": lambda: dist.broadcast(received, root, group=handle),
        "all_gather": lambda: gather(received, sent, group=handle),
        "reduce_scatter": lambda: scatter(received, sent, group=handle),
        "all_to_all": lambda: dist.all_to_all_single(received, sent, group=handle),
        "send_recv": exchange,
    }[collective]


def is_settled(samples: Sequence[float]) -> bool:
    """Return True if both ends of the 95 % interval of the median are within 2 % of it.

    The ends are order statistics: the number of samples below the median is binomial, here approximated as normal, so
    nothing is assumed about the distribution of the times. It takes at least 8 samples.
    """
    below = int(len(samples) / 2 - 0.98 * len(samples) ** 0.5)
    if below < 1:
        return False
    ordered, median = sorted(samples), statistics.median(samples)
    return max(median - ordered[below - 1], ordered[-below] - median) <= PRECISION * median


class CallTimer(NamedTuple):
    """Times the calls of one message, on all ranks alike.

    Args:
        call: function that sends the message.
        agreement: exchange that gives all ranks one answer.
        device: device of the data.
        budget_s: time after which no new batch starts.
        enough_us: median above which a first batch is enough; None = no limit.
    """

    call: Callable[[], Any]
    agreement: Any
    device: torch.device
    budget_s: float
    enough_us: float | None = None

    def time_calls(self, counts: tuple[int, int] = (WARMUP_CALLS, FIRST_BATCH)) -> list[float]:
        """Time calls in growing batches until the median settles; on rank 0 return the times on the slowest rank, µs.

        Args:
            counts: numbers of untimed calls and of calls in the first batch (`first_counts`).
        """
        slowest: list[float] = []
        deadline = time.monotonic() + self.budget_s

        def decide(times_us: list[list[float]]) -> int:
            slowest.extend(map(max, *times_us))
            median = statistics.median(slowest)
            if is_settled(slowest) or (self.enough_us is not None and median > self.enough_us):
                return 0
            affordable = int((deadline - time.monotonic()) * 1e6 / max(1.0, median))
            return max(0, min(len(slowest), MOST_SAMPLES - len(slowest), affordable))

        warmup, count = counts
        for _ in range(warmup):
            self.call()
        while count:
            batch = _times_on_gpu if self.device.type == "cuda" else _times_on_host
            count = self.agreement.reach(batch(self.call, count), decide)
        return slowest

    def first_counts(self, first_us: float) -> tuple[int, int]:
        """Return the numbers of untimed calls and of calls in the first batch: fewer where they would take very long.

        A message that is too slow to win and would exceed the budget before its first batch is done gets as many timed
        calls as fit into the budget, at least `LEAST_CALLS`, and no untimed ones: two calls have been made by then.

        Args:
            first_us: time of the very first call on the slowest rank, equal on all ranks.
        """
        usual = WARMUP_CALLS + ALIGN_CALLS + FIRST_BATCH

        def lasts(call_us: float) -> bool:
            return self.enough_us is not None and call_us > self.enough_us and call_us * usual > self.budget_s * 1e6

        # The first call may have connected the ranks; only a second one shows that calls are slow.
        if not lasts(first_us):
            return WARMUP_CALLS, FIRST_BATCH
        call_us = float(self.agreement.reach(_duration_us(self.call, self.device), max))
        if not lasts(call_us):
            return WARMUP_CALLS, FIRST_BATCH
        affordable = int(self.budget_s * 1e6 / call_us) - ALIGN_CALLS
        return 0, max(LEAST_CALLS, min(FIRST_BATCH, affordable))


def _duration_us(call: Callable[[], Any], device: torch.device) -> float:
    """Return the time of one call from an empty queue until it is done on this rank."""
    _finish(device)
    began_s = time.perf_counter()
    call()
    _finish(device)
    return (time.perf_counter() - began_s) * 1e6


def _finish(device: torch.device) -> None:
    import torch

    if device.type == "cuda":
        # Only this stream: the work beside the messages has its own.
        torch.cuda.current_stream(device).synchronize()


def _times_on_host(call: Callable[[], Any], count: int) -> list[float]:
    for _ in range(ALIGN_CALLS):
        call()
    marks = [time.perf_counter()]
    for _ in range(count):
        call()
        marks.append(time.perf_counter())
    return [round((marks[i + 1] - marks[i]) * 1e6, 3) for i in range(count)]


def _times_on_gpu(call: Callable[[], Any], count: int) -> list[float]:
    import torch

    marks = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]  # type: ignore[no-untyped-call]
    # The GPU waits (some 50 µs a call) until the host has queued all calls: its speed is measured, not the host's.
    torch.cuda._sleep(100_000 * (count + ALIGN_CALLS))  # type: ignore[no-untyped-call]
    for _ in range(ALIGN_CALLS):
        call()
    marks[0].record()
    for mark in marks[1:]:
        call()
        mark.record()
    marks[-1].synchronize()
    return [round(marks[i].elapsed_time(marks[i + 1]) * 1e3, 3) for i in range(count)]


class Gemm:
    """Multiplies matrices beside the messages, on its own stream and thread, while it is entered."""

    def __init__(self, device: torch.device) -> None:
        self._device, self.products = device, 0
        self._began, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, name="gemm", daemon=True)

    def __enter__(self) -> Gemm:
        """Begin; returns when the first products are done, or could not be."""
        self._thread.start()
        self._began.wait()
        return self

    def __exit__(self, *_: object) -> None:
        """End, and wait until the last product is done."""
        self._stop.set()
        self._thread.join()

    def _work(self) -> None:
        import torch

        on_gpu = self._device.type == "cuda"
        size, dtype = (4096, torch.float16) if on_gpu else (256, torch.float32)
        try:
            stream = torch.cuda.Stream(self._device) if on_gpu else None  # type: ignore[no-untyped-call]
            with torch.cuda.stream(stream) if stream else nullcontext():
                factor = torch.rand(size, size, dtype=dtype, device=self._device)
                product = torch.empty_like(factor)
                while not self._stop.is_set():
                    for _ in range(8):
                        torch.mm(factor, factor, out=product)
                    if stream:
                        stream.synchronize()
                    self.products += 8
                    self._began.set()
        finally:
            self._began.set()


def measure(
    message: MeasuredMessage,
    group: MeasuredGroup,
    agreement: Any,
    device: torch.device,
    budget_s: float,
    enough_us: float | None = None,
) -> dict[str, Any]:
    """Measure one message; fresh data are checked before and after, so the times are those of a working call.

    Args:
        message: what is sent; every rank of the job measures it at the same time, each in its own group.
        group: this rank's.
        agreement: makes the ranks reach one answer (`Agreement` of the worker).
        device: of the data.
        budget_s: for timing; a first batch of calls is always timed.
        enough_us: time per call above which this setting cannot win for this message: its first batch is then enough,
            or a smaller one if calls are very slow. The same on all ranks; None = no such limit.

    Returns:
        samples of the slowest rank in µs (on rank 0 only), whether their median is settled, the number of elements
        that came out wrong on all ranks, and a hash of the bits that all ranks received for inexact numbers.
    """
    problem = ""
    try:
        payload = MessageBuffers(message, group, device)
    except RuntimeError as error:  # no memory: the others must not wait for this rank in a collective
        problem = str(error)
    agreement.require(problem)

    def check() -> tuple[int, float]:
        payload.fill()
        took_us = _duration_us(payload.call, device)
        wrong, slowest_us = agreement.reach(
            [payload.wrong(), took_us], lambda checks: [sum(w for w, _ in checks), max(us for _, us in checks)]
        )
        return int(wrong), float(slowest_us)

    wrong, first_us = check()
    timer = CallTimer(payload.call, agreement, device, budget_s, enough_us)
    samples_us = timer.time_calls(timer.first_counts(first_us))
    wrong += check()[0]
    payload.fill(inexact=True)
    payload.call()
    bits = agreement.reach(
        payload.hash_bits(), lambda hashes: hashlib.sha256(" ".join(hashes).encode()).hexdigest()[:16]
    )
    return {"samples_us": samples_us, "settled": is_settled(samples_us), "wrong": wrong, "bits": bits}
