"""Output of `profile show`."""

import json

import pytest

from ncclt.cli.profile import print_profile, profile_document
from ncclt.core.message import Collective, Message
from ncclt.core.workload import MessageCalls, Provenance, Workload


def _calls(size, calls, time_us=None, collective=Collective.ALL_REDUCE):
    message = Message(collective=collective, dtype="float32", size_bytes=size)
    return MessageCalls(message=message, calls_per_step=calls, recorded_us=time_us)


def _recorded(step_time_us=100_000.0, exposed_us=4_100.0, steps=20):
    return Workload(
        name="run",
        messages=(_calls(28 * 2**20, 12.0, 600.0), _calls(8192, 100.0, 30.0, Collective.BROADCAST)),
        provenance=Provenance(source="kineto", world_size=8, steps=steps, notes=("a note",)),
        step_time_us=step_time_us,
        exposed_us=exposed_us,
    )


def _shown(capsys, workload, limit=0):
    print_profile(workload, limit=limit)
    return capsys.readouterr().out


def test_missing_times_are_named_and_bound_nothing(capsys):
    for workload, text in ((_recorded(exposed_us=None), "unknown"), (_recorded(step_time_us=None, steps=0), "no step")):
        out = _shown(capsys, workload)
        assert text in next(line for line in out.splitlines() if line.startswith("Exposed communication"))


def test_dominance_is_by_time_where_there_is_time(capsys):
    document = profile_document(_recorded())
    assert document["dominant_by"] == "time"
    assert [row["time_share"] for row in document["messages"]] == [pytest.approx(7.2 / 10.2), pytest.approx(3 / 10.2)]
    assert [row["dominant"] for row in document["messages"]] == [True, True]
    assert "2 of 2 messages, 100.0 % of the communication time" in _shown(capsys, _recorded())


def test_dominance_is_by_bytes_elsewhere():
    workload = Workload(name="m", messages=(_calls(1000, 1.0), _calls(8, 1.0)), provenance=Provenance(source="model"))
    document = profile_document(workload)
    assert document["dominant_by"] == "bytes"
    assert [row["dominant"] for row in document["messages"]] == [True, False]
    assert "time_share" not in document["messages"][0]
    assert (document["exposed_share"], document["communication_us"]) == (None, None)


def test_a_new_workload_is_outlined_and_the_command_for_the_rest_named(capsys):
    files = ", ".join(f"rank{rank}.json.gz" for rank in range(64))
    origin = Provenance(source="kineto", detail={"files": files})
    workload = Workload(name="m", messages=tuple(_calls(8 * n, 1.0) for n in range(1, 51)), provenance=origin)
    out = _shown(capsys, workload, limit=None)
    assert max(map(len, out.splitlines())) < 200
    assert len(out.splitlines()) <= 16
    assert "and 40 more messages" in out
    assert out.count("ncclt profile show m --limit 0") == 1
    assert "rank63.json.gz" in _shown(capsys, workload)


def test_bytes_classes_and_median_sizes(capsys):
    out = _shown(capsys, _recorded())
    assert "337 MiB per rank per step (589 MiB on the wire, 4.6 GiB for all 8 ranks)" in out
    assert "Median size: 8 KiB by calls, 28 MiB by bytes, 28 MiB by time" in out
    document = json.loads(json.dumps(profile_document(_recorded())))
    assert document["half_of"] == {"calls": 8192, "bytes": 28 * 2**20, "time": 28 * 2**20}
    assert {(c["collective"], c["class"]) for c in document["size_classes"]} == {
        ("all_reduce", "large"),
        ("broadcast", "small"),
    }
    assert document["wire_bytes_total"] == 8 * document["wire_bytes_per_rank"]


def test_the_heaviest_rows_are_shown_first(capsys):
    out = _shown(capsys, _recorded(), limit=1)
    assert "28 MiB" in out.splitlines()[5]
    assert "... and 1 more message with 29.4 % of the communication time" in out
