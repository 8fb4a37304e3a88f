"""The result file of nccl-tests, in the three versions of its format."""

import dataclasses
import itertools
import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclt.errors import BenchmarkError
from ncclt.nccl.nccl_tests.json import parse_json

SAMPLES = {path.stem: path.read_text() for path in (Path(__file__).parent / "samples").glob("*.json")}


def test_version_1_with_its_odd_numbers():
    """Quoted nan, bare inf, padded root, null checks and a failed check."""
    test = parse_json(SAMPLES["nccl_tests_v1"])
    assert (test.program, test.ranks, test.avg_busbw_gbps, test.out_of_bounds) == ("all_reduce_perf", 4, 0.0015, 1)
    first, second = test.rows
    assert (first.size_bytes, first.count, first.dtype, first.redop, first.root) == (8, 2, "float", "sum", -1)
    assert (first.out_of_place.time_us, first.in_place.time_us) == (11.25, 10.98)
    assert first.out_of_place.wrong == 0
    assert math.isnan(second.out_of_place.time_us)
    assert math.isnan(second.out_of_place.busbw_gbps)
    assert (second.out_of_place.wrong, second.in_place.wrong) == (3, None)


def test_version_2_with_iterations_and_cpu_time():
    """Two processes with one GPU each; -C calls the time cpu_time."""
    test = parse_json(SAMPLES["nccl_tests_v2"])
    assert (test.program, test.ranks) == ("alltoall_perf_mpi", 2)
    assert test.rows[0].out_of_place.calls_us == (20.0, 22.0)
    assert test.rows[0].out_of_place.time_us == 21.0
    assert test.rows[0].in_place.wrong is None


def test_version_3_with_an_empty_row_and_a_missing_half():
    """Alignment can leave nothing to send, and a replay has no out-of-place half."""
    test = parse_json(SAMPLES["nccl_tests_v3"])
    assert (test.ranks, test.nccl) == (8, "23007")
    assert [row.size_bytes for row in test.rows] == [0, 128]
    assert test.rows[0].out_of_place is None
    assert test.rows[1].in_place.time_us == 16.75


def test_a_newer_version_is_read_as_well():
    """Fields have only ever been added, so waiting for an update of ncclt would help nobody."""
    text = SAMPLES["nccl_tests_v3"]
    newer = parse_json(text.replace('"version":3', '"version":4', 1))
    assert (newer.rows, newer.file_version) == (parse_json(text).rows, 4)


def test_only_the_ranks_of_the_first_group_are_counted():
    """With NCCL_TESTS_SPLIT all ranks are listed, but the rows are those of one group."""
    devices = [{"rank": rank, "group": rank // 4} for rank in range(8)]
    timing = {"time": 1.0, "alg_bw": 1.0, "bus_bw": 1.0, "nwrong": 0.0}
    row = {"size": 8, "count": 2, "type": "float", "redop": "sum", "root": "-1", "out_of_place": timing}
    document = {"version": 3, "config": {"nthreads": 1, "ngpus": 2, "devices": devices}, "results": [row]}
    assert parse_json(json.dumps(document)).ranks == 8


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_the_environment_is_never_kept(name):
    """The file holds every variable of the run, secrets too."""
    assert "do-not-keep-me" in SAMPLES[name]
    assert "do-not-keep-me" not in repr(dataclasses.asdict(parse_json(SAMPLES[name])))


def test_a_cut_file_says_so(subtests):
    """A run that was ended leaves half a file."""
    for name, share in itertools.product(sorted(SAMPLES), [0.0, 0.01, 0.3, 0.7, 0.99]):
        with subtests.test(name=name, share=share):
            text = SAMPLES[name].strip()
            with pytest.raises(BenchmarkError, match="cut off"):
                parse_json(text[: int(len(text) * share)])


def test_other_files_are_refused(subtests):
    """Each with the reason and a hint."""
    for text, reason in [
        ("[1, 2]", "not a JSON object"),
        ("hello", "not JSON"),
        ('{"version": 4}', "version 4 .* newer than 3"),
        ('{"version": 4, "results": [{"bytes": 8}]}', "version 4 .* newer than 3"),
        ('{"version": "new", "results": []}', "not a result file of nccl-tests"),
        ("{}", "not a result file of nccl-tests"),
        ('{"version":3,"results":[],"errors":["unhandled cuda error"]}', "unhandled cuda error"),
        ('{"version":3,"results":[]}', "no rows"),
        ('{"version":3,"results":[{"size":-8}]}', "KeyError"),
        ('{"version":3,"config":[],"results":[1]}', "not a result file"),
        ("[" * 100_000 + "]" * 100_000, "nested too deeply"),
    ]:
        with subtests.test(text=text, reason=reason):
            with pytest.raises(BenchmarkError, match=reason) as caught:
                parse_json(text)
            assert caught.value.hint


@given(data=st.data())
def test_mutated_files_raise_nothing_else(data):
    """Whatever is cut, doubled or overwritten: rows, or a BenchmarkError."""
    text = SAMPLES[data.draw(st.sampled_from(sorted(SAMPLES)))]
    for _ in range(data.draw(st.integers(1, 4))):
        start, length = data.draw(st.integers(0, len(text))), data.draw(st.integers(0, 30))
        filler = st.sampled_from(["nan", "null", "[]", "{}", '"', "-1", "9" * 5000, "1e999", "inf", "true"])
        text = text[:start] + data.draw(st.one_of(st.text(max_size=8), filler)) + text[start + length :]
    try:
        test = parse_json(text)
    except BenchmarkError:
        return
    assert test.rows
