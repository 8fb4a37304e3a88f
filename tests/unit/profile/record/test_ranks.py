"""Reading what the ranks wrote about themselves."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclt.profile.record.ranks import (
    RankReport,
    explain_missing_trace,
    measure_overhead,
    read_reports,
    read_step_times,
)

FACTS = {
    "rank": 1,
    "state": "recorded",
    "steps_seen": 9,
    "outside_s": [0.1],
    "inside_s": [0.2],
    "write_s": 1.5,
    "failures": [],
}


def _report(**facts):
    return RankReport(**{"rank": 0, "state": "recorded", "steps_seen": 9} | facts)


def _write(folder, name, text):
    (folder / "ranks").mkdir(exist_ok=True)
    (folder / "ranks" / name).write_text(text)


def test_reports_come_in_order_of_rank_those_without_last(tmp_path):
    for name, rank in (("a", None), ("b", 10), ("c", 2)):
        _write(tmp_path, f"{name}.json", json.dumps(FACTS | {"rank": rank}))
    reports = read_reports(tmp_path)
    assert [report.rank for report in reports] == [2, 10, None]
    assert (reports[0].inside_s, reports[0].write_s) == ((0.2,), 1.5)


def test_a_broken_journal_is_a_failure_with_its_name(tmp_path):
    for text in ["", "[]", "{", "null", json.dumps(FACTS | {"rank": "x"}), json.dumps({"rank": 1})]:
        _write(tmp_path, "host.7.json", text)
        (report,) = read_reports(tmp_path)
        assert report.state == "failed"
        assert "host.7.json" in report.failures[0]


def test_a_journal_without_an_entry_names_it(tmp_path):
    for name in FACTS:
        _write(tmp_path, "host.7.json", json.dumps({key: value for key, value in FACTS.items() if key != name}))
        (report,) = read_reports(tmp_path)
        assert report.state == "failed"
        assert f"$.{name} is missing" in report.failures[0]


def test_overhead_is_that_of_the_median_rank():
    reports = [_report(outside_s=(0.1, 0.1, 9.0), inside_s=(0.1 + extra, 0.1 + extra)) for extra in (0.01, 0.5, 0.02)]
    cost = measure_overhead(reports)
    assert (cost.outside_us, cost.inside_us) == pytest.approx((1e5, 1.2e5))


def test_spread_of_unrecorded_steps_is_told():
    cost = measure_overhead([_report(outside_s=tuple(n / 100 for n in range(1, 10)), inside_s=(0.05,))])
    assert (cost.low_us, cost.outside_us, cost.high_us) == pytest.approx((3e4, 5e4, 7e4))
    alone = measure_overhead([_report(outside_s=(0.1,), inside_s=(0.1,))])
    assert alone.low_us == alone.high_us == pytest.approx(1e5)


def test_overhead_is_unknown_without_both_kinds_of_steps():
    assert measure_overhead([]) is None
    assert measure_overhead([_report(inside_s=(0.1,)), _report(outside_s=(0.1,))]) is None


@given(st.lists(st.floats(1e-6, 1e3), min_size=1), st.lists(st.floats(1e-6, 1e3), min_size=1))
def test_equal_steps_cost_nothing_and_order_does_not_matter(outside_s, inside_s):
    same = measure_overhead([_report(outside_s=tuple(outside_s), inside_s=tuple(outside_s))])
    assert same.inside_us == pytest.approx(same.outside_us)
    one = measure_overhead([_report(outside_s=tuple(outside_s), inside_s=tuple(inside_s))])
    assert one == measure_overhead([_report(outside_s=tuple(outside_s[::-1]), inside_s=tuple(sorted(inside_s)))])


def test_missing_traces_are_explained(tmp_path):
    for reports, started, said in [
        ([], False, "no Python process"),
        ([], True, "no process of the command loaded PyTorch"),
        ([_report(state="loaded", steps_seen=0)], True, "no optimizer made a step"),
        ([_report(state="loaded", steps_seen=8)], True, "8 steps, which is not beyond the warm-up"),
        ([_report(state="recording")], True, "ended while they recorded"),
        ([_report(state="failed", failures=("no room",))] * 2, True, "failed in the ranks: no room"),
    ]:
        if started:
            (tmp_path / "python-started").touch()
        reason, hint = explain_missing_trace(tmp_path, reports)
        assert said in reason
        assert hint


def _launch(folder, *ranks):
    """Write the journals of a launch of which times alone were taken."""
    folder.mkdir(exist_ok=True)
    (folder / "python-started").touch()
    (folder / "ranks").mkdir()
    for number, facts in enumerate(ranks):
        job = {"host": "a", "rank": number, "world_size": len(ranks), "outside_s": [], "inside_s": [0.1, 0.2]}
        _write(folder, f"{number}.json", json.dumps(FACTS | job | facts))
    return folder


def test_each_step_takes_as_long_as_its_slowest_rank(tmp_path):
    times = read_step_times(_launch(tmp_path, {}, {"inside_s": [0.3, 0.1], "host": "b"}), steps=2)
    assert times.step_us == pytest.approx((3e5, 2e5))
    assert (times.ranks, times.world_size, times.hosts, times.failure) == (2, 2, 2, "")


def test_helpers_that_load_pytorch_and_make_no_steps_do_not_count(tmp_path):
    helper = {"rank": None, "state": "loaded", "steps_seen": 0, "inside_s": [], "world_size": 0}
    assert read_step_times(_launch(tmp_path, {}, helper), steps=2).ranks == 1


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
    times = read_step_times(_launch(tmp_path, *ranks), steps=2)
    assert said in times.failure
    assert times.step_us == ()


@given(st.lists(st.lists(st.floats(0, 1e3), min_size=3, max_size=3), min_size=1, max_size=4))
def test_no_step_is_shorter_than_on_any_rank(tmp_path_factory, inside):
    folder = _launch(tmp_path_factory.mktemp("job") / "f", *({"inside_s": times} for times in inside))
    told = read_step_times(folder, steps=3).step_us
    assert list(told) == [max(column) * 1e6 for column in zip(*inside, strict=True)]
