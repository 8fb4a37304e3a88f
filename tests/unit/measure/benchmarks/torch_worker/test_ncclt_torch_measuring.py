"""The measuring side: numbers that make sums exact, what has to come out, when timing ends."""

import random

import pytest

torch = pytest.importorskip("torch")

from ncclt.measure.benchmarks.torch_worker import ncclt_torch_measuring as measuring  # noqa: E402  after the skip

CPU = torch.device("cpu")
IN_PLACE = ("all_reduce", "reduce", "broadcast")
COLLECTIVES = (*IN_PLACE, "all_gather", "reduce_scatter", "all_to_all", "send_recv")
DTYPES = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int8", "uint8")


def _payloads(collective, *, ranks=4, dtype="float32", elements=5000):
    message = measuring.MeasuredMessage(collective, dtype, elements, ranks, False)
    payloads = [
        measuring.MessageBuffers(message, measuring.MeasuredGroup(None, [*range(ranks)], me), CPU)
        for me in range(ranks)
    ]
    for payload in payloads:
        payload.fill()
    return payloads


def _carry_out(collective, payloads):
    """Do what the collective has to do, by its definition, in the dtype itself and one rank after another."""
    sent = [payload._sent.clone() for payload in payloads]
    ranks, part = len(payloads), payloads[0]._part
    total = sent[0].clone()
    for other in sent[1:]:
        total += other
    for me, payload in enumerate(payloads):
        received = {
            "all_reduce": lambda: total,
            "reduce": lambda me=me: total if me == 0 else sent[me],
            "broadcast": lambda: sent[0],
            "all_gather": lambda: torch.cat(sent),
            "reduce_scatter": lambda me=me: total[me * part :][:part],
            "all_to_all": lambda me=me: torch.cat([other[me * part :][:part] for other in sent]),
            "send_recv": lambda me=me: sent[(me - 1) % ranks],
        }[collective]()
        payload._received.copy_(received)


@pytest.mark.parametrize(
    ("collective", "dtype"),
    [
        *((collective, "float32") for collective in COLLECTIVES),
        *((summing, dtype) for summing in ("all_reduce", "reduce_scatter") for dtype in DTYPES if dtype != "float32"),
    ],
)
def test_what_is_expected_is_what_the_collective_does(collective, dtype):
    """Element for element; where numbers are added, in each dtype."""
    payloads = _payloads(collective, dtype=dtype)
    _carry_out(collective, payloads)

    assert [payload.wrong() for payload in payloads] == [0] * 4


def test_the_parts_of_a_buffer_lie_end_to_end(subtests):
    """As in a training: no padding hides that odd parts begin unaligned."""
    for collective in COLLECTIVES:
        with subtests.test(collective=collective):
            payload = _payloads(collective, dtype="bfloat16", elements=13)[0]
            parts = 4 if collective in ("all_gather", "reduce_scatter", "all_to_all") else 1
            assert max(payload._sent.nbytes, payload._received.nbytes) == 26 * parts


def test_nothing_sent_is_wrong_everywhere(subtests):
    """Where nothing arrived each rank that should have got something says so."""
    for collective in COLLECTIVES:
        with subtests.test(collective=collective):
            getting = 1 if collective == "reduce" else 3 if collective == "broadcast" else 4

            assert sum(payload.wrong() > 1000 for payload in _payloads(collective)) == getting


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_data_that_land_elsewhere_are_noticed(collective):
    """Also a power of two away, as a wrong chunk or channel would put them."""
    payloads = _payloads(collective, elements=1 << 17)
    _carry_out(collective, payloads)
    right = payloads[0]._received.clone()
    for offset in (1, 2, 64, 1024, 4096, 1 << 16):
        payloads[0]._received.copy_(right.roll(offset))
        assert payloads[0].wrong() > 1000, offset


def test_sums_are_exact_in_every_dtype_and_order(subtests):
    """Bfloat16 has 8 bits and int8 has 7; a rank that is left out or counted twice shows."""
    cases = [2, 8, 64, 512, 5000]
    for ranks in cases:
        with subtests.test(ranks=ranks):
            table, sums = measuring.number_tables(ranks)
            by_hand = [sum(table[(i + rank) % measuring.PERIOD] for rank in range(ranks)) for i in range(0, 4093, 97)]

            assert by_hand == sums[::97]
            assert min(table) == 0
            assert 0 < max(sums) < measuring.POISON
            assert sum(number > 0 for number in table) > 10


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_another_order_of_additions_gives_other_bits_of_inexact_numbers_alone(dtype):
    found = {}
    for inexact in (False, True):
        for step in (1, -1, 1):
            payloads = _payloads("all_reduce", dtype=dtype)
            for payload in payloads:
                payload.fill(inexact=inexact)
            _carry_out("all_reduce", payloads[::step])
            found.setdefault(inexact, []).append({payload.hash_bits() for payload in payloads})
    assert found[False][0] == found[False][1]
    first, other, again = found[True]
    assert first == again
    assert first.isdisjoint(other)


def test_every_received_byte_counts_in_the_hash(monkeypatch):
    monkeypatch.setattr(measuring, "HASHED_BYTES", 1000)
    payload = _payloads("all_gather", dtype="uint8", elements=1250)[0]
    seen = set()
    for changes in ({}, {0: 1}, {0: 128}, {1: 1}, {999: 1}, {1000: 1}, {4999: 1}, {0: 2, 1: 255}, {0: 255, 1: 2}):
        payload._received.zero_()
        for place, value in changes.items():
            payload._received[place] = value
        seen.add(payload.hash_bits())
    assert len(seen) == 9


def test_the_undefined_buffers_of_a_reduce_are_not_hashed():
    payloads = _payloads("reduce")
    before = [payload.hash_bits() for payload in payloads]
    for payload in payloads:
        payload._received.fill_(3)
    assert [p.hash_bits() != old for p, old in zip(payloads, before, strict=True)] == [True, False, False, False]


def test_a_few_and_many_parts_of_a_message_word():
    """Words are what the tuner writes; anything else is an error and no guess."""
    assert measuring.MeasuredMessage.parse("all_reduce:float32:7:8") == ("all_reduce", "float32", 7, 8, False)
    assert measuring.MeasuredMessage.parse("all_gather:uint8:7:8:across") == ("all_gather", "uint8", 7, 8, True)
    for word in ("all_reduce:float32:7", "all_reduce:float32:x:8", "all_reduce:float32:7:8:sideways"):
        with pytest.raises(ValueError, match=r".+"):
            measuring.MeasuredMessage.parse(word)


def test_settled_is_when_the_interval_of_the_median_is_within_2_percent(subtests):
    """A few outliers do not matter, two heaps do."""
    cases = [
        ([100.0] * 7, False),
        ([100.0] * 8, True),
        ([98.1, 99, 100, 100, 100, 100, 101, 101.9], True),
        ([97.0, 99, 100, 100, 100, 100, 101, 102], False),
        ([100.0] * 60 + [5000.0] * 4, True),
        ([100.0] * 32 + [110.0] * 32, False),
    ]
    for samples, settled in cases:
        with subtests.test(samples=samples):
            assert measuring.is_settled(samples) is settled


class _Alone:
    """Rank 0's side of an agreement with one other rank, whose times are given by a function of its own."""

    def __init__(self, other):
        self._other, self.rounds = other, []

    def reach(self, mine, decide):
        answer = decide([mine, self._other(mine)])
        self.rounds.append((len(mine), answer))
        return answer


def _time(monkeypatch, own, *, other=lambda mine: [1.0] * len(mine), budget_s=3600.0):
    calls = []
    monkeypatch.setattr(measuring, "_times_on_host", lambda _call, count: [own() for _ in range(count)])
    agreement = _Alone(other)
    samples = measuring.CallTimer(lambda: calls.append(1), agreement, CPU, budget_s).time_calls()
    assert len(calls) == measuring.WARMUP_CALLS
    return samples, agreement.rounds


def test_noisy_times_take_batches_that_double_until_there_are_256(monkeypatch):
    """All of them count."""
    noise = random.Random(1)
    samples, rounds = _time(monkeypatch, lambda: noise.choice((10.0, 20.0)))

    assert rounds == [(8, 8), (8, 16), (16, 32), (32, 64), (64, 128), (128, 0)]
    assert len(samples) == 256


def test_no_batch_is_begun_that_would_outlast_the_budget(monkeypatch):
    """Calls of 10 s and a budget of 35 s: three more calls and no fourth."""
    noise = random.Random(1)
    monkeypatch.setattr(measuring.time, "monotonic", lambda: 0.0)
    samples, rounds = _time(monkeypatch, lambda: noise.choice((9.9e6, 10e6, 15e6)), budget_s=35)

    assert rounds[0][1] == 3
    assert len(samples) > 8


@pytest.mark.parametrize(("enough_us", "samples"), [(None, 256), (30.0, 256), (12.0, 8)])
def test_what_is_slower_than_it_should_be_gets_a_first_batch(enough_us, samples, monkeypatch):
    """Times of 15 µs that never settle: from 12 µs on nobody wants to know them better."""
    monkeypatch.setattr(measuring, "_times_on_host", lambda _call, count: [15.0] * count)
    monkeypatch.setattr(measuring, "is_settled", lambda _samples: False)

    found = measuring.CallTimer(lambda: None, _Alone(lambda mine: mine), CPU, 3600.0, enough_us).time_calls()

    assert len(found) == samples


USUAL = (measuring.WARMUP_CALLS, measuring.FIRST_BATCH)


@pytest.mark.parametrize(
    ("enough_us", "first_us", "second_us", "counts", "calls"),
    [
        (None, 9e6, 9e6, USUAL, 0),  # nobody knows what it should take
        (150.0, 140.0, 0, USUAL, 0),
        (150.0, 20_000.0, 0, USUAL, 0),  # out of the question, and yet 15 calls fit into half a second
        (150.0, 5e6, 100.0, USUAL, 1),  # it was the connecting that took long
        (1e6, 5e5, 0, USUAL, 0),  # slow, and meant to be
        (150.0, 5e6, 60_000.0, (0, 6), 1),
        (150.0, 5e6, 4e6, (0, measuring.LEAST_CALLS), 1),
    ],
)
def test_very_slow_calls_are_made_less_often(enough_us, first_us, second_us, counts, calls, monkeypatch):
    """The second call decides, for the first one may have connected the ranks; the slowest rank counts."""
    made = []
    monkeypatch.setattr(measuring, "_duration_us", lambda call, _device: call() or second_us / 2)
    agreement = _Alone(lambda mine: 2 * mine)
    agreement.reach = lambda mine, decide: decide([mine, 2 * mine])

    found = measuring.CallTimer(lambda: made.append(1), agreement, CPU, 0.5, enough_us).first_counts(first_us)

    assert found == counts
    assert len(made) == calls


def test_a_duration_is_that_of_one_call():
    assert measuring._duration_us(lambda: measuring.time.sleep(0.03), CPU) > 29_000


def test_the_slowest_rank_counts_call_by_call(monkeypatch):
    """The job waits for it."""
    samples, _ = _time(monkeypatch, lambda: 50.0, other=lambda mine: [49.9, 50.1] * (len(mine) // 2))

    assert samples == [50.0, 50.1] * 4


def test_times_on_the_host_are_those_of_the_calls():
    """The first two calls are not timed: ranks come out of an agreement at different moments."""
    naps = iter([0.2, 0.2, 0.0, 0.03, 0.0, 0.0])
    times_us = measuring._times_on_host(lambda: measuring.time.sleep(next(naps)), 4)

    assert len(times_us) == 4
    assert times_us[1] > 29_000
    assert min(times_us) > 0


def test_the_matrix_product_runs_from_entering_until_leaving():
    """Products are done before the first message is sent, and the thread is gone afterwards."""
    with measuring.Gemm(CPU) as gemm:
        assert gemm.products >= 8
    assert not gemm._thread.is_alive()


def test_a_rank_without_memory_says_so_before_anything_is_sent(monkeypatch):
    """The others must not wait for it in a collective."""

    class RefusedError(Exception):
        pass

    class Agreement:
        def require(self, problem):
            raise RefusedError(problem)

    def fail(*_arguments):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(measuring, "MessageBuffers", fail)
    with pytest.raises(RefusedError, match="out of memory"):
        measuring.measure(None, None, Agreement(), CPU, 1.0)


def test_times_on_a_gpu_are_taken_while_it_is_behind_the_host(monkeypatch):
    """The GPU is held first, then the calls are queued that align the ranks, then marks and calls in turn."""
    queued = []

    class Event:
        def __init__(self, *, enable_timing):
            assert enable_timing

        def record(self):
            queued.append(self)

        def synchronize(self):
            assert self is queued[-1]

        def elapsed_time(self, end):
            return 0.25 * (queued.index(end) - queued.index(self))

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: queued.append(f"hold {cycles // 100_000}"))

    times_us = measuring._times_on_gpu(lambda: queued.append("call"), 3)

    assert [what if isinstance(what, str) else "mark" for what in queued] == [
        *("hold 5", "call", "call"),
        *("mark", "call", "mark", "call", "mark", "call", "mark"),
    ]
    assert times_us == [500.0, 500.0, 500.0]
