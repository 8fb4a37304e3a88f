"""The table of nccl-tests: recorded outputs of real clusters, and the forms that none of them has."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclt.errors import BenchmarkError
from ncclt.nccl.nccl_tests.text import parse_text

HALF = "  time   algbw   busbw  #wrong"
HEADER = f"#       size         count      type   redop    root   {HALF}   {HALF}"
HEAD = "        1024           256     float     sum      -1"
ROW = f"{HEAD}    20.11    0.05    0.08       0    17.64    0.06    0.09       0"
FOOTER = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 0.085 \n#"
RANKS = "#  Rank  0 Group  0 Pid 1\n#  Rank  1 Group  0 Pid 1"
WHOLE = f"# nThread 1 nGpus 2 minBytes 1024\n{RANKS}\n{HEADER}\n{ROW}\n{FOOTER}"


@pytest.mark.shared
def test_every_recorded_output_reads_as_expected(shared_data):
    """Rows, ranks, first and last row and mean bandwidth of every file; a run without rows is an error."""
    folder = shared_data / "nccl-tests"
    expected = json.loads((folder / "expected.json").read_text())
    assert len(expected) == 22
    for name, tests in expected.items():
        text = (folder / name).read_text()
        if not any(test["rows"] for test in tests):
            with pytest.raises(BenchmarkError):
                parse_text(text)
            continue
        found = parse_text(text)
        assert [len(test.rows) for test in found] == [test["rows"] for test in tests], name
        for got, want in zip(found, tests, strict=True):
            assert got.ranks == want["ranks"]
            assert got.avg_busbw_gbps == want["avg_busbw"]
            assert got.out_of_bounds == 0
            assert sorted({row.dtype for row in got.rows}) == want["dtypes"]
            first = got.rows[0]
            assert [str(first.size_bytes), str(first.count), first.dtype] == want["first"]
            assert _words(got.rows[-1], want["cols"].split()[1:]) == pytest.approx(_numbers(want["last"]))


def _words(row, columns):
    """Spell a row as numbers in the order of its table's columns."""
    head = {"size": row.size_bytes, "count": row.count, "type": row.dtype, "redop": row.redop, "root": row.root}
    names = [name for name in columns if name in head]
    halves = [(half.time_us, half.algbw_gbps, half.busbw_gbps, half.wrong) for half in (row.out_of_place, row.in_place)]
    return [_number(value) for value in [*(head[name] for name in names), *halves[0], *halves[1]]]


def _numbers(words):
    return [_number(word) for word in words]


def _number(word):
    if word in (None, "N/A"):
        return math.inf
    try:
        return float(word)
    except ValueError:
        return float(sum(map(ord, word)))  # names of types and operations, comparable with approx


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (
            "mlperf_Oracle_image_classification_mxnet_1x8x400_240430221144196422959_nccl.log",
            "More processors requested",
        ),
        ("mlperf_Oracle_image_classification_mxnet_1x8x400_240430231546800271321_nccl.log", "no CUDA-capable device"),
    ],
)
def test_a_recorded_failure_is_named(shared_data, name, reason):
    """The error says what the log says."""
    with pytest.raises(BenchmarkError, match=reason):
        parse_text((shared_data / "nccl-tests" / name).read_text())


def test_only_the_ranks_of_the_first_group_are_counted():
    """With NCCL_TESTS_SPLIT all ranks are listed, but the rows are those of one group; old releases have no groups."""
    split = "\n".join(f"#  Rank  {rank} Group  {rank % 2} Pid 1" for rank in range(8))
    (test,) = parse_text(WHOLE.replace(RANKS, split))
    assert test.ranks == 4
    (test,) = parse_text(WHOLE.replace(" Group  0", ""))
    assert test.ranks == 2


def test_log_lines_are_passed_over_and_counted():
    """NCCL writes into the middle of a row: that row is lost, its pieces are counted, its neighbours are read."""
    broken = ROW[:60] + "host:1:2 [0] NCCL INFO Connected\n" + ROW[60:]
    noise = f"host:1:2 [0] NCCL INFO Launch mode\n\n[2026-01-01 10:00:00] h:1:2 [0] a.cc:1 NCCL WARN x\n{broken}"
    (test,) = parse_text(WHOLE.replace(ROW, f"{ROW}\n{noise}\n{ROW}"))
    assert [row.size_bytes for row in test.rows] == [1024, 1024]
    assert test.unreadable_lines == 4


def test_per_iteration_columns_and_time_stamps():
    """-I 1 adds four columns to each half, -S 1 a stamp of two words, -C 1 renames the time."""
    half = "cputime algbw busbw #wrong i_min i_max i_p99 i_cv%"
    header = f"#  size count type redop root {half} {half} timestamp"
    row = "1024 256 float sum -1 20 1 2 0 19 21 21 3.2 18 1 2 N/A 17 19 19 3.1 2026-01-01 10:00:00"
    (test,) = parse_text(f"# nThread 1\n{header}\n{row}\n{FOOTER}")
    assert test.rows[0].out_of_place.time_us == 20
    assert test.rows[0].in_place.time_us == 18
    assert test.rows[0].in_place.wrong is None
    assert test.rows[0].out_of_place.wrong == 0


def test_several_tests_in_one_file():
    """A new heading opens a new test, with or without the lines that newer releases print before it.

    -N 2 prints the sweep twice.
    """
    newer = f"# nccl-tests version 2.19.6 nccl-headers=1\n# Collective test starting: reduce_perf\n{WHOLE}"
    tests = parse_text("\n\n".join([WHOLE, newer, WHOLE.replace(ROW, f"{ROW}\n{ROW}")]))
    assert [(t.program, t.version, t.ranks, len(t.rows)) for t in tests] == [
        (None, None, 2, 1),
        ("reduce_perf", "2.19.6", 2, 1),
        (None, None, 2, 2),
    ]


def test_wrong_elements_large_numbers_and_nan():
    """The count is printed with %6g, times may be nan, bandwidths inf."""
    row = ROW.replace("20.11", "nan").replace("17.64", "1.2e+06").replace("       0", "  2e+06")
    (test,) = parse_text(WHOLE.replace(ROW, row).replace(": 0 OK", ": 2 FAILED").replace(": 0.085", ": -nan"))
    assert math.isnan(test.rows[0].out_of_place.time_us)
    assert test.rows[0].in_place.time_us == 1_200_000
    assert test.rows[0].out_of_place.wrong == 2_000_000
    assert test.out_of_bounds == 2
    assert math.isnan(test.avg_busbw_gbps)


def test_the_error_column_of_old_releases_is_no_count():
    """It held the largest difference, so nothing is known about the number of wrong elements."""
    (test,) = parse_text(WHOLE.replace("#wrong", " error").replace("       0", "  5e-07"))
    assert test.rows[0].out_of_place.wrong is None


def test_a_run_that_ended_early_has_no_footer():
    """Rows are kept; what comes after the table is not known."""
    (test,) = parse_text(WHOLE.partition("# Out of")[0])
    assert len(test.rows) == 1
    assert test.out_of_bounds is None
    assert test.avg_busbw_gbps is None


def test_nothing_measured_is_an_error(subtests):
    """No header, no row, or nothing at all."""
    for text in ["", "\n\n", HEADER, ROW, "# nThread 1\n", f"{HEADER}\n-8 2 float sum -1 1 1 1 0 1 1 1 0"]:
        with subtests.test(text=text):
            with pytest.raises(BenchmarkError) as caught:
                parse_text(text)
            assert caught.value.hint


@given(data=st.data())
def test_mutated_text_raises_nothing_else(data):
    """Whatever is cut, doubled or overwritten: a result with rows, or a BenchmarkError."""
    text = "\n".join([WHOLE, WHOLE])
    for _ in range(data.draw(st.integers(1, 6))):
        start, length = data.draw(st.integers(0, len(text))), data.draw(st.integers(0, 60))
        filler = data.draw(st.one_of(st.text(max_size=20), st.sampled_from(["nan", "-", "#", "9" * 5000, "²", "\x00"])))
        text = text[:start] + filler + text[start + length :]
    try:
        found = parse_text(text)
    except BenchmarkError:
        return
    assert any(test.rows for test in found)
    assert all(row.size_bytes >= 0 for test in found for row in test.rows)


def test_blank_columns_are_read(subtests):
    """A name in the header with nothing below it."""
    for columns, head, redop, root in [
        ("redop", "", "", None),  # alltoall before 2.10, as SuperBench publishes it
        ("redop root", "-1", "", -1),
        ("redop root", "", "", None),
        ("root", "", None, None),
        ("", "", None, None),
    ]:
        with subtests.test(columns=columns, head=head, redop=redop, root=root):
            half = "time algbw busbw error"
            header = f"# nThread 1 nGpus 2\n# size count type {columns} {half} {half}\n"
            text = f"{header}32 1 float {head} 8.9 1 2 N/A 8.5 1 2 N/A\n"
            (test,) = parse_text(text)
            (row,) = test.rows
            assert (row.redop, row.root, row.out_of_place.time_us, row.in_place.time_us) == (redop, root, 8.9, 8.5)


def test_a_row_that_lost_a_word_is_not_taken_for_one_with_a_blank():
    """The operation is there, so what is missing is something else."""
    (test,) = parse_text(WHOLE.replace(ROW, f"{ROW}\n{ROW.replace(' 20.11', '')}"))
    assert (len(test.rows), test.unreadable_lines) == (1, 1)


def test_the_command_above_a_table_is_kept():
    """Releases before 2.17 do not name their program."""
    (test,) = parse_text(f"+ srun -n 8 ./build/all_reduce_perf_mpi -b 8\n{WHOLE}")
    assert (test.program, test.command) == (None, "all_reduce_perf")
