"""DeepSpeed's comms logger: tables, verbose lines, the dictionary."""

from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ncclt.errors import TraceError
from ncclt.profile.readers.deepspeed import DeepSpeedReader
from ncclt.testing.reader_contract import message_table

HEADER = (
    "Comm. Op            Message Size        Count               Total Latency(ms)   Avg Latency(ms)     tput busbw"
)
STRAGGLER = "Comm. Op            Message Size        Count               Total comm lat(ms)  Total straggler(ms)"


def row(size, count, tput=100.0, busbw=75.0, ms=2.0):
    return f"{'':20}{size:20}{count:<20}{ms * count:<20.2f}{ms:<20.2f}{tput:<20.2f}{busbw:<20.2f}"


def verbose(operation, size, *, rank=0, ms=2.0, tput=100.0, busbw=75.0):
    return (
        f"[2026-01-02 03:04:05,678] [INFO] [logging.py:69:log_dist] [Rank {rank}] comm op: {operation} | "
        f"time (ms): {ms:.2f} | msg size: {size} | algbw (Gbps): {tput:.2f} | busbw (Gbps): {busbw:.2f}"
    )


@pytest.fixture
def log(read_files):
    return partial(read_files, DeepSpeedReader())


table = partial(message_table, fields=("collective", "size_bytes"))


def test_units_are_powers_of_1024(log):
    """And `0B` moves nothing."""
    rows = [
        HEADER,
        "all_reduce",
        row("0B", 9),
        row("512.0 B", 1),
        row("2.0 KB", 2),
        row("1.5 MB", 3),
        row("1.25 GB", 4),
    ]
    workload = log(rows)
    sizes = {512: 1, 2048: 2, 3 << 19: 3, 5 << 28: 4}
    assert table(workload) == {("all_reduce", size): calls for size, calls in sizes.items()}
    assert "left out: 9 x all_reduce of 0 bytes" in workload.provenance.notes
    assert any("rounded" in note for note in workload.provenance.notes)


def test_gathers_show_one_rank_and_scatters_all(log):
    """The ranks follow from busbw / tput = 3/4."""
    workload = log([HEADER, "all_gather_into_tensor", row("2.0 KB", 1), "reduce_scatter_tensor", row("2.0 KB", 1)])
    assert table(workload) == {("all_gather", 8192): 1.0, ("reduce_scatter", 2048): 1.0}
    assert workload.provenance.world_size == 4
    assert any("the 4 ranks of the job follow from" in note for note in workload.provenance.notes)


def test_ranks_that_do_not_follow_are_not_guessed(log):
    """Too small for two decimals, no whole number, or no fraction: the gather is left out and the reason said."""
    for tput, busbw in [(0.0, 0.0), (0.1, 0.08), (100.0, 71.0), (100.0, 100.0)]:
        rows = [HEADER, "all_gather_base", row("2.0 KB", 5, tput, busbw), "broadcast", row("2.0 KB", 1, 5.0, 5.0)]
        workload = log(rows)
        assert table(workload) == {("broadcast", 2048): 1.0}
        assert workload.provenance.world_size == 0
        assert any(
            note.startswith("left out: 5 x all_gather_base of 2048 bytes per rank")
            for note in workload.provenance.notes
        )


def test_callers_of_one_operation_add_up(log):
    """Debug mode splits an operation by its caller."""
    rows = [
        HEADER,
        "broadcast | [Caller Func: one]",
        row("2.0 KB", 3),
        "broadcast | [Caller Func: two]",
        row("2.0 KB", 4),
    ]
    assert table(log(rows)) == {("broadcast", 2048): 7.0}


def test_stragglers_are_not_counted_twice(log):
    """Their table has the same first three columns."""
    rows = [HEADER, "broadcast", row("2.0 KB", 3), "____", "Breakdown with straggler effect", STRAGGLER]
    assert table(log([*rows, "broadcast", row("2.0 KB", 3)])) == {("broadcast", 2048): 3.0}


def test_later_tables_repeat_the_earlier_ones(log):
    """log_summary counts from the start; a table that is cut off does not hide the one before it."""
    rows = [
        HEADER,
        "broadcast",
        row("2.0 KB", 3),
        HEADER,
        "broadcast",
        row("2.0 KB", 6),
        HEADER,
        "broadcast",
        row("2.0 KB", 1),
    ]
    workload = log(rows)
    assert table(workload) == {("broadcast", 2048): 6.0}
    assert any("3 tables" in note for note in workload.provenance.notes)


def test_prefixes_of_launchers_are_no_operations(log):
    """In front of every line; other output between the lines changes nothing."""
    rows = [HEADER, "broadcast", "step 7 is finished", row("2.0 KB", 3)]
    assert table(log([f"worker-0: {line}" for line in rows])) == {("broadcast", 2048): 3.0}


def test_verbose_lines_count_where_there_is_no_table(log):
    """With their ranks; times are averaged."""
    rows = [verbose("all_reduce", "2.0 KB", rank=r, ms=ms) for r in (0, 1) for ms in (1.0, 3.0)]
    rows += [verbose("send | [Caller Func: f]", "1.0 KB"), verbose("recv", "1.0 KB")]
    workload = log(rows)
    assert table(workload) == {("all_reduce", 2048): 2.0, ("send_recv", 1024): 1.0}
    assert workload.provenance.ranks_read == (0, 1)
    assert {m.recorded_us for m in workload.messages} == {2000.0}
    assert table(log([*rows, HEADER, "all_reduce", row("2.0 KB", 9)])) == {("all_reduce", 2048): 9.0}


def test_dictionary_has_exact_sizes(log):
    """What log_summary(return_dict=True) returns, as JSON; nonsense in it is passed over."""
    facts = {"count": 3, "avg_latency_ms": 1.5, "tput_avg_gbps": 9.0, "busbw_avg_gbps": 8.0}
    sizes = {"1234567": facts, "x": facts, "-4": facts, "8": {"count": -1}, "16": 7, "32": {"count": float("nan")}}
    document = {
        "summary": {"all_gather | [Caller Func: f]": sizes, "broken": 5},
        "straggler_analysis": {"all_gather": {"1234567": {"count": 3}}},
        "metadata": {"world_size": 16, "rank": 0, "timestamp": "2026-01-02T03:04:05"},
    }
    workload = log(document)
    assert table(workload) == {("all_gather", 16 * 1234567): 3.0}
    origin = workload.provenance
    assert (origin.world_size, origin.ranks_read, origin.created) == (16, (0,), "2026-01-02")
    assert not any("rounded" in note for note in origin.notes)
    other = {**document, "metadata": {"world_size": 8, "rank": 1}}
    with pytest.raises(TraceError, match="different jobs"):
        log(document, other)
    with pytest.raises(TraceError, match="rank 0 appears twice"):
        log(document, document)


def test_log_without_messages_is_refused_with_the_reason(log):
    """And with what to record instead."""
    for rows, why in [
        ([HEADER], "no row"),
        ([HEADER, row("2.0 KB", 3)], "no row"),
        ([HEADER, "barrier", row("2.0 KB", 3)], "barrier"),
        ([HEADER, "all_gather", row("2.0 KB", 3, 0.0, 0.0)], "number of ranks"),
        (["nothing of it"], "no output of DeepSpeed"),
        ({"summary": {}}, "no output of DeepSpeed"),
    ]:
        with pytest.raises(TraceError, match=why) as caught:
            log(rows)
        assert caught.value.hint


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=300), st.integers(0, 140))
def test_damaged_logs_are_read_in_part(tmp_path, noise, at):
    """Noise spoils at most the row it is in."""
    good, other = row("2.0 KB", 3).encode(), row("4.0 KB", 1).encode()
    path = tmp_path / "fuzz.txt"
    lines = [HEADER.encode(), b"all_reduce", good, other[:at] + noise + other[at:]]
    path.write_bytes(b"\n".join(lines))
    DeepSpeedReader().recognises(path)
    assert ("all_reduce", 2048) in table(DeepSpeedReader().read([path], name="fuzz"))


@pytest.mark.shared
def test_tables_of_the_tutorial_give_the_extractors_table(read_traces, extracted):
    """Its names are DeepSpeed's; sizes and calls agree exactly."""
    for file in ["deepspeed/log_summary_1.txt", "deepspeed/log_summary_2.txt"]:
        workload = read_traces(file)
        expected = {(r["collective"].removesuffix("_tensor"), r["size_bytes"]): r["calls"] for r in extracted[file]}
        assert table(workload) == expected
        assert {(m.message.dtype, m.message.group_size) for m in workload.messages} == {("uint8", 0)}
        assert workload.provenance.world_size == 16
