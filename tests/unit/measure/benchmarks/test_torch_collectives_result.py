"""The worker's report, found in what launchers forward."""

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclt.errors import BenchmarkError
from ncclt.measure.benchmarks.torch_collectives import VERSION, failed_rank, find_result, parse_result
from ncclt.measure.benchmarks.torch_worker import ncclt_torch_worker

TORCHRUN_TABLE = """\
============================================================
ncclt_torch_worker.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-21_14:13:04
  host      : localhost
  rank      : 2 (local_rank: 2)
  exitcode  : -15 (pid: 20810)
  error_file: <N/A>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-21_14:13:04
  host      : localhost
  rank      : 5 (local_rank: 1)
  exitcode  : -11 (pid: 20809)
  error_file: <N/A>
  traceback : Signal 11 (SIGSEGV) received by PID 20809
============================================================
"""


def _row(**changes):
    return {
        "message": "all_reduce:float32:8:2",
        "samples_us": [1.5, 2],
        "wrong": 0,
        "bits": "ab12",
    } | changes


def _document(*rows, **changes):
    return {"version": VERSION, "environment": {"backend": "gloo"}, "beside": {}, "measurements": [*rows]} | changes


def _printed(capsys, document):
    report = ncclt_torch_worker.WorkerReport(None)
    report.document = document
    report.write()
    return capsys.readouterr().out


@pytest.fixture
def long_document():
    noise = random.Random(5)
    return _document(*(_row(samples_us=[noise.random() + 1 for _ in range(50)]) for _ in range(20)))


def test_both_sides_speak_of_the_same_version():
    """Worker and reader are shipped together, and change together."""
    assert ncclt_torch_worker.VERSION == VERSION


@pytest.mark.parametrize(
    "forwarded",
    [
        lambda lines: "\n".join(lines),
        lambda lines: "".join(lines),
        lambda lines: "\n".join(reversed(lines)),
        lambda lines: "\n".join(f"[1,0]<stdout>:{line}" for line in lines),
        lambda lines: "".join(f"{line}vm:77:99 [0] NCCL INFO comm 0x1 rank 0\n" for line in lines),
        lambda lines: "\r\n".join(f"  0: {line}" for line in lines),
        lambda lines: "\n".join(lines * 2),
        lambda lines: "NCCLT-RESULT 1/2 00 \n" + "\n".join(lines),
    ],
    ids=["as-is", "joined", "reversed", "mpirun", "mixed-with-a-log", "srun", "twice", "after-a-broken-line"],
)
def test_a_printed_result_is_found_wherever_it_stands(forwarded, long_document, capsys):
    """Launchers join lines, mark them and mix them with others."""
    lines = _printed(capsys, long_document).splitlines()
    assert len(lines) > 3

    assert json.loads(find_result(forwarded(lines))) == long_document


def test_a_part_that_is_missing_is_told(long_document, capsys):
    """Half a result is none."""
    lines = _printed(capsys, long_document).splitlines()

    with pytest.raises(BenchmarkError, match=f"{len(lines) - 1} of {len(lines)} parts"):
        find_result("\n".join(lines[1:]))


def test_a_changed_letter_is_told(long_document, capsys):
    """The checksum is of the whole."""
    printed = _printed(capsys, long_document)
    middle = printed.index("NCCLT-RESULT 2/") + 60
    broken = printed[:middle] + ("A" if printed[middle] != "A" else "B") + printed[middle + 1 :]

    with pytest.raises(BenchmarkError, match="broken"):
        find_result(broken)


def test_two_results_are_told(capsys):
    """Every process of a job took itself for rank 0, as with a foreign mpirun."""
    printed = _printed(capsys, _document(_row())) + _printed(capsys, _document(_row(wrong=1)))

    with pytest.raises(BenchmarkError, match="2 runs"):
        find_result(printed)


def test_no_result_is_told_with_its_reason(subtests):
    """As far as somebody said one; what torchrun ended itself is no reason."""
    cases = [
        ("", "it printed nothing"),
        ("ncclt: rank 1 on b failed after 3.000000 s: no memory\nmore\n", "rank 1 on b: no memory"),
        (
            "Traceback (most recent call last):\nModuleNotFoundError: No module named 'torch'\n",
            "No module named 'torch'",
        ),
        (TORCHRUN_TABLE, "rank 5 was ended by SIGSEGV"),
        (TORCHRUN_TABLE + "ncclt: rank 0 on b failed after 3.000000 s: lost\n", "SIGSEGV; rank 0 on b: lost"),
    ]
    for printed, reason in cases:
        with subtests.test(printed=printed):
            with pytest.raises(BenchmarkError, match=reason) as caught:
                find_result(printed)
            assert "rank 2" not in caught.value.message


def test_nobody_said_why():
    """An empty reason is for the caller to fill."""
    assert failed_rank("all is well\n") == ""


def test_a_document_is_read():
    """Numbers as they are."""
    result = parse_result(json.dumps(_document(_row(), _row(wrong=2), beside={"gemm": 80})))

    assert result.rows[0].samples_us == (1.5, 2.0)
    assert (result.wrong, result.beside, result.error) == (2, "gemm", "")
    assert result.environment == {"backend": "gloo"}


def test_what_is_no_result_is_an_error_with_a_hint(subtests):
    """Nothing else is ever raised, and no time is invented."""
    cases = [
        "",
        "[]",
        "null",
        '{"version": 1}',
        "[" * 100_000,
        json.dumps(_document("row")),
        json.dumps(_document(_row(samples_us=[]))),
        json.dumps(_document(_row(samples_us=[0.0]))),
        json.dumps(_document(_row(samples_us=[-1.0]))),
        json.dumps(_document(_row(samples_us=[float("nan")]))),
        json.dumps(_document(_row(samples_us=[float("inf")]))),
        json.dumps(_document(_row(samples_us=["soon"]))),
        json.dumps(_document(_row(samples_us=None))),
        json.dumps(_document(_row(wrong=-1))),
        json.dumps(_document(_row(wrong=None))),
        json.dumps(_document(_row(wrong=0.5))),
        json.dumps(_document(_row(), beside=None)),
        json.dumps(_document(_row(), environment=3)),
        json.dumps(_document(_row(), version="1")),
    ]
    for text in cases:
        with subtests.test(text=text):
            with pytest.raises(BenchmarkError) as caught:
                parse_result(text)
            assert caught.value.hint


@given(
    st.text() | st.from_regex(r"(NCCLT-RESULT [0-3]/[0-3] [0-9a-f]{8} [A-Za-z0-9+/=]{1,9}\.\n?){1,4}", fullmatch=True)
)
def test_noise_is_no_result(text):
    """Whatever was printed, it is an error of ours and says something."""
    with pytest.raises(BenchmarkError) as caught:
        find_result(text)
    assert caught.value.message
