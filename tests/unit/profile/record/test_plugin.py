"""What a recording by the plugin sets, refuses, and makes of the files that come back."""

import os
from pathlib import Path

import pytest
from plugin_report import line, write_report

from ncclt.core.workload import WHOLE_FILE
from ncclt.errors import TraceError, UsageError
from ncclt.profile.record.plugin import FOLDER, plugin_variables, read_plugin_reports
from ncclt.profile.record.ranks import RankReport

PLACE = Path("/shared/.ncclt-record-x")
LIBRARY = Path("/opt/ncclt/libnccl-tuner-ncclt.so")


def test_a_table_in_use_stays_in_use():
    for named in ["ncclt", "libnccl-tuner-ncclt.so", "/elsewhere/libnccl-tuner-ncclt.so"]:
        environ = {"NCCL_TUNER_PLUGIN": named, "NCCLT_POLICY": "/shared/bert.csv"}

        variables, notes = plugin_variables(PLACE, environ, library=None)

        assert variables == {"NCCLT_PLUGIN_REPORT": f"{PLACE}/plugin"}
        assert "with the table that NCCLT_POLICY names" in notes[0]


def test_a_table_out_of_use_does_not_come_into_use():
    variables, notes = plugin_variables(PLACE, {"NCCL_TUNER_CONFIG_FILE": "/site.csv"}, library=LIBRARY)

    assert variables["NCCL_TUNER_CONFIG_FILE"] == ""
    assert any("NCCL_TUNER_CONFIG_FILE is emptied" in note for note in notes)


def test_what_cannot_be_recorded_is_refused_with_a_hint():
    for environ, library, said in [
        ({}, None, "no compiled tuner plugin"),
        ({"NCCL_TUNER_PLUGIN": "/site/libnccl-ofi-tuner.so"}, LIBRARY, "its own tuner plugin"),
        ({"NCCL_TUNER_PLUGIN": "none"}, LIBRARY, "its own tuner plugin"),
        ({"NCCLT_PLUGIN_REPORT": "/r"}, LIBRARY, "go to /r already"),
    ]:
        with pytest.raises(UsageError, match=said) as caught:
            plugin_variables(PLACE, environ, library=library)
        assert caught.value.hint


@pytest.fixture
def folder(tmp_path):
    (tmp_path / FOLDER).mkdir()
    return tmp_path


def left(folder, rank=0):
    path = folder / FOLDER / f"ncclt-plugin.n.{rank + 1}.0.1.jsonl"
    return write_report(path, line("all_reduce", 4096, 40), pid=rank + 1, launch_rank=rank)


def counted(steps):
    return RankReport(rank=0, state="loaded", steps_seen=steps)


def read(folder, ranks=(), *, steps=None, exit_code=0):
    return read_plugin_reports(folder, ranks, name="mine", steps=steps, exit_code=exit_code)


def test_calls_are_divided_by_the_steps_that_are_known(folder):
    for ranks, steps, expected in [
        ((), 10, (4.0, 10)),
        ([counted(20), counted(16)], None, (2.0, 20)),
        ((), None, (40.0, 0)),
    ]:
        for rank in (0, 1):
            left(folder, rank)

        workload = read(folder, ranks, steps=steps)

        assert (workload.messages[0].calls_per_step, workload.provenance.steps) == expected
        notes = " | ".join(workload.provenance.notes)
        assert (WHOLE_FILE in notes) == (expected[1] == 0)
        assert ("other ranks made 16 and more" in notes) == (expected[1] == 20)
        assert "send_recv, all_to_all, symmetric-memory" in notes


def test_what_is_no_report_is_never_opened(folder):
    mine = left(folder)
    place = folder / FOLDER
    (place / "ncclt-plugin.n.7.0.1.jsonl").symlink_to(mine)
    os.mkfifo(place / "ncclt-plugin.n.8.0.1.jsonl")
    (place / "ncclt-plugin.n.9.0.1.jsonl").mkdir()
    (place / "core.\x1b[31m").write_text("x")
    (place / "ncclt-plugin.n.5.0.1.jsonl.part").write_text('{"ncclt')

    workload = read(folder, steps=1)

    assert workload.messages[0].calls_per_step == 40
    notes = " | ".join(workload.provenance.notes)
    assert "cut off while written: 1 reports" in notes
    assert "\x1b" not in notes
    assert "core." in notes


def test_a_damaged_report_is_refused_whole(folder):
    left(folder)
    path = left(folder, 1)
    path.write_text(path.read_text()[:-20])

    with pytest.raises(TraceError, match="not a record of the plugin"):
        read(folder, steps=1)


def test_no_report_says_what_may_be_the_cause(folder):
    for part, exit_code, said in [
        (False, 0, "from 2.21 on"),
        (False, 137, "ended by SIGKILL"),
        (True, 1, "while they wrote"),
    ]:
        if part:
            (folder / FOLDER / "ncclt-plugin.n.5.0.1.jsonl.part").write_text("{")

        with pytest.raises(TraceError, match="no process wrote a report") as caught:
            read(folder, exit_code=exit_code)
        assert said in caught.value.hint
