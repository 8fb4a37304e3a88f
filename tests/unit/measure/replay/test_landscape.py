"""Loading recorded landscapes: what is read and refused."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.message import Collective, Message
from ncclt.core.policy import Policy, Rule
from ncclt.core.setting import DEFAULT, Setting
from ncclt.core.workload import MessageCalls, Provenance, Workload
from ncclt.errors import InputError
from ncclt.measure.replay import Landscape, load_landscape
from ncclt.testing.landscapes import write_landscape

RING_LL = Setting(algorithm=Algorithm.RING, protocol=Protocol.LL)


def row(**fields: object) -> dict[str, object]:
    return {"size_bytes": 1024, "time_us": 10, **fields}


NO_NOISE = "no run-to-run variation was recorded, so the interval does not cover noise"
FORCED = {"algo": "ring", "proto": "ll"}
TWO = (row(), row(**FORCED, time_us=8), row(size_bytes=4096, time_us=40), row(size_bytes=4096, **FORCED, time_us=32))


def write(folder: Path, *rows: dict[str, object], **cluster: object) -> Path:
    return write_landscape(folder / "recorded.csv", rows, **cluster)


def message(size: int, collective: Collective = Collective.ALL_REDUCE, **changes) -> Message:
    return Message(collective=collective, dtype="float16", size_bytes=size, **changes)


@pytest.fixture
def two(tmp_path: Path) -> Landscape:
    return load_landscape(write(tmp_path, *TWO))


def test_what_was_recorded_can_be_asked_for(two):
    assert two.settings() == (RING_LL,)
    assert two.time_samples(RING_LL, message(1024)) == (8.0,)
    assert two.time_samples(DEFAULT, message(4096)) == (40.0,)
    assert two.time_samples(Setting(channels=2), message(1024)) == ()
    assert two.notes == ()


def test_between_recorded_sizes_the_logarithms_are_interpolated(two):
    """Times proportional to the size stay proportional."""
    assert two.time_samples(DEFAULT, message(2048)) == (pytest.approx(20.0),)
    assert not two.is_exact(RING_LL, message(2048))


@given(size=st.integers(1024, 4096))
def test_an_interpolated_time_lies_between_its_neighbours(tmp_path_factory, size):
    landscape = load_landscape(write(tmp_path_factory.mktemp("l"), *TWO))
    (time_us,) = landscape.time_samples(DEFAULT, message(size))
    assert 10.0 <= time_us <= 40.0 + 1e-9


def test_only_the_recorded_range_of_the_whole_job_is_covered(two):
    assert two.covers(message(1024))
    assert two.covers(message(4096, group_size=8))
    assert not two.covers(message(1023))
    assert not two.covers(message(8193))
    assert not two.covers(message(2048, group_size=4))
    assert not two.covers(message(2048, Collective.BROADCAST))
    assert two.time_samples(DEFAULT, message(8193)) == ()
    assert two.time_samples(DEFAULT, message(1023)) == ()


def test_up_to_twice_the_largest_size_its_bandwidth_applies_and_that_is_said(two):
    assert two.covers(message(6144))
    assert two.time_samples(DEFAULT, message(6144)) == (pytest.approx(60.0),)
    assert not two.is_exact(DEFAULT, message(6144))
    assert two.caveats([message(1024)]) == (NO_NOISE,)
    assert two.caveats([message(1024), message(6144)]) == (
        NO_NOISE,
        "extrapolated at the bandwidth of the largest recorded size: all_reduce 6 KiB",
    )


def test_no_setting_is_extrapolated_beside_a_default_that_was_recorded(tmp_path):
    landscape = load_landscape(write(tmp_path, *TWO, row(size_bytes=16384, time_us=160)))
    assert landscape.time_samples(DEFAULT, message(6144))
    assert landscape.time_samples(RING_LL, message(6144)) == ()
    assert not landscape.covers(message(6144))


def test_a_size_at_which_only_the_default_was_recorded_offers_no_choice(tmp_path):
    landscape = load_landscape(write(tmp_path, *TWO, row(size_bytes=64, time_us=3)))
    assert landscape.time_samples(DEFAULT, message(64)) == (3.0,)
    assert not landscape.covers(message(64))


def test_the_best_possible_policy_is_found_by_exhaustive_search(tmp_path):
    """Per message the fastest, but with one value of a process-wide parameter for all."""
    path = write(
        tmp_path,
        *TWO,
        row(algo="ring", proto="simple", time_us=16),
        row(size_bytes=4096, algo="ring", proto="simple", time_us=20),
        row(parameters=[("BUFFSIZE", 8388608)], time_us=9),
        row(size_bytes=4096, parameters=[("BUFFSIZE", 8388608)], time_us=10),
    )
    landscape = load_landscape(path)
    calls = tuple(MessageCalls(message=message(size), calls_per_step=n) for size, n in ((1024, 10.0), (4096, 1.0)))
    workload = Workload(name="w", messages=calls, provenance=Provenance(source="test"))
    assert landscape.best_us(workload) == pytest.approx(10 * 8 + 20)
    always_ll = Policy(rules=(Rule(collective=Collective.ALL_REDUCE, algorithm=Algorithm.RING, protocol=Protocol.LL),))
    assert landscape.speedups(workload, always_ll) == pytest.approx((140 / 100, 140 / 112))


def test_spread_and_repeats_are_the_noise_from_launch_to_launch(tmp_path):
    path = write(
        tmp_path,
        row(spread=0.1693),
        row(**FORCED, time_us=8),
        row(**FORCED, time_us=9),
        *TWO[2:],
    )
    landscape = load_landscape(path)
    assert landscape.sigma(DEFAULT, message(1100)) == pytest.approx(0.1)
    assert landscape.sigma(RING_LL, message(1024)) == pytest.approx(0.0833, abs=1e-3)
    assert landscape.sigma(DEFAULT, message(4096)) == 0
    (noise,) = landscape.caveats([message(1024), message(4096)])
    assert noise == "replayed with the recorded run-to-run variation (default: 10 %; none recorded for 1 of 2 messages)"


def test_a_pair_that_a_collective_does_not_have_leaves_it_to_nccl(tmp_path):
    path = write(
        tmp_path,
        *TWO,
        row(algo="tree", proto="ll", time_us=9),
        row(collective="broadcast", time_us=5),
        row(collective="all_to_all", time_us=6),
    )
    landscape = load_landscape(path)
    tree = Setting(algorithm=Algorithm.TREE, protocol=Protocol.LL)
    assert landscape.time_samples(tree, message(1024)) == (9.0,)
    assert landscape.time_samples(tree, message(1024, Collective.BROADCAST)) == (5.0,)
    assert landscape.time_samples(replace(tree, channels=8), message(1024, Collective.BROADCAST)) == (5.0,)
    assert landscape.time_samples(RING_LL, message(1024, Collective.ALL_TO_ALL)) == (6.0,)
    assert landscape.time_samples(RING_LL, message(1024, Collective.BROADCAST)) == ()


def test_repeats_become_samples(tmp_path):
    landscape = load_landscape(write(tmp_path, *TWO, row(**FORCED, time_us=9)))
    assert landscape.time_samples(RING_LL, message(1024)) == (8.0, 9.0)


def test_in_place_times_are_noted(tmp_path):
    assert load_landscape(write(tmp_path, *({**one, "in_place": True} for one in TWO))).notes == ("in-place times",)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ((row(), row(size_bytes=2048)), "the NCCL default only"),
        ((row(**FORCED), row(algo="tree")), "recorded.csv has no row of the NCCL default"),
        ((*TWO, row(collective="broadcast", **FORCED)), "no default row for broadcast"),
    ],
)
def test_a_table_without_a_choice_is_refused(tmp_path, rows, words):
    with pytest.raises(InputError, match=words) as caught:
        load_landscape(write(tmp_path, *rows))
    assert caught.value.hint


def test_the_cluster_beside_the_table_is_needed_and_fits(tmp_path):
    path = write(tmp_path, *TWO, name="hall", gpu="H100-SXM5-80GB")
    assert load_landscape(path).cluster.gpu == "H100-SXM5-80GB"
    toml = path.with_suffix(".toml")
    text = toml.read_text()
    toml.write_text(text.replace("gpus_per_node = 8", "gpus_per_node = 4"))
    with pytest.raises(InputError, match=r"recorded\.csv, line 2: gpus_per_node is 8, and 4 in recorded\.toml"):
        load_landscape(path)
    toml.write_text("name = ")
    with pytest.raises(InputError, match=r"recorded\.toml"):
        load_landscape(path)
    toml.unlink()
    with pytest.raises(InputError, match=r"needs its cluster in recorded\.toml beside it"):
        load_landscape(path)
