"""Step times of a launch."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclt.profile.record.ranks import read_step_times


def _write(folder, *ranks):
    (folder / "ranks").mkdir(parents=True)
    (folder / "python-started").touch()
    for number, facts in enumerate(ranks):
        journal = {
            "host": "a",
            "rank": number,
            "world_size": len(ranks),
            "state": "recorded",
            "steps_seen": 9,
            "outside_s": [],
            "inside_s": [0.1, 0.2],
            "write_s": 0.0,
            "failures": [],
        }
        (folder / "ranks" / f"{number}.json").write_text(json.dumps(journal | facts))
    return folder


def test_each_step_takes_as_long_as_its_slowest_rank(tmp_path):
    times = read_step_times(_write(tmp_path, {}, {"inside_s": [0.3, 0.1], "host": "b"}), steps=2)
    assert times.step_us == pytest.approx((3e5, 2e5))
    assert (times.ranks, times.world_size, times.hosts, times.failure) == (2, 2, 2, "")


def test_helpers_that_load_pytorch_and_make_no_steps_do_not_count(tmp_path):
    helper = {"rank": None, "state": "loaded", "steps_seen": 0, "inside_s": [], "world_size": 0}
    assert read_step_times(_write(tmp_path, {}, helper), steps=2).ranks == 1


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        ([{}, {"inside_s": [0.1], "state": "cut short", "steps_seen": 5}], "ended after 5 steps"),
        ([{"inside_s": [], "state": "loaded", "steps_seen": 2}], "ended after 2 steps"),
        ([{"inside_s": [], "state": "loaded", "steps_seen": 0}], "no optimizer made a step"),
        ([{}, {"failures": ["no room"], "state": "failed"}], "no room"),
        ([{}, {"rank": 0}], "started again"),
        ([], "PyTorch"),
    ],
)
def test_missing_times_are_explained(tmp_path, ranks, said):
    times = read_step_times(_write(tmp_path, *ranks), steps=2)
    assert said in times.failure
    assert times.step_us == ()


@given(st.lists(st.lists(st.floats(0, 1e3), min_size=3, max_size=3), min_size=1, max_size=4))
def test_no_step_is_shorter_than_on_any_rank(tmp_path_factory, inside):
    folder = _write(tmp_path_factory.mktemp("job") / "f", *({"inside_s": times} for times in inside))
    told = read_step_times(folder, steps=3).step_us
    assert list(told) == [max(column) * 1e6 for column in zip(*inside, strict=True)]
