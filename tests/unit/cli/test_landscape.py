"""`ncclt landscape`: recorded clusters by name, and a study as a table that can be replayed."""

import csv
import io
import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from ncclt.cli.application import app
from ncclt.cli.landscape import bar
from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.message import Collective, Message
from ncclt.core.policy import Policy, Rule
from ncclt.core.setting import DEFAULT, Setting
from ncclt.core.study import Phase, Study, StudyState, Trial
from ncclt.core.trial import Measurement, Outcome, TrialResult
from ncclt.core.workload import MessageCalls, Provenance, Workload
from ncclt.measure.simulated import load_landscape
from ncclt.measure.simulated.export import COLUMNS, export
from ncclt.measure.simulated.landscape_rows import OPTIONAL, REQUIRED
from ncclt.user_dirs import recorded_tables

LL = Setting(algorithm=Algorithm.RING, protocol=Protocol.LL, channels=4)
BUFFERS = Setting(parameters=(("BUFFSIZE", 8388608), ("MIN_CTAS", 16)))
MESSAGES = tuple(
    Message(collective=Collective.ALL_REDUCE, dtype="float32", size_bytes=size, group_size=4) for size in (4096, 8192)
)
PART = Message(collective=Collective.ALL_REDUCE, dtype="float32", size_bytes=4096, group_size=2)


def run(*words, rc=0):
    done = CliRunner().invoke(app, words)
    assert done.exit_code == rc, done.output
    return done.output


def launch(number, setting, times, *, outcome=Outcome.OK, interpolated=False):
    measured = tuple(
        Measurement(message=message, samples_us=(time_us,), interpolated=interpolated)
        for message, time_us in zip((*MESSAGES, PART), times, strict=False)
    )
    result = TrialResult(outcome=outcome, measurements=measured, place="node07,node08")
    return Trial(number=number, phase=Phase.SEARCH, setting=setting, repeat=0, result=result, score_us=1.0)


TRIALS = [
    launch(0, DEFAULT, (10.0, 20.0, 5.0)),
    launch(1, LL, (8.0, 19.0, 4.0)),
    launch(2, BUFFERS, (9.0, 15.0)),
    launch(3, DEFAULT, (11.0, 21.0)),
    launch(4, LL, (1.0, 1.0), outcome=Outcome.WRONG_RESULT),
    launch(5, LL, (2.0, 2.0), interpolated=True),
]
LARGE_LL = Policy(
    rules=(
        Rule(
            collective=Collective.ALL_REDUCE, min_bytes=8192, algorithm=LL.algorithm, protocol=LL.protocol, channels=4
        ),
    )
)  # fmt: skip


@pytest.fixture
def study(cluster):
    calls = tuple(MessageCalls(message=message, calls_per_step=1.0) for message in MESSAGES)
    return Study(
        id="abc123", name="mine", cluster=cluster, launcher="slurm", simulated=False, process_wide=(), seed=0,
        workload=Workload(name="w", messages=calls, provenance=Provenance(source="test")), state=StudyState.DONE,
        created="2026-11-22T10:00:00+00:00",
    )  # fmt: skip


def exported(study, path=None, more=()):
    text = io.StringIO()
    rows, notes = export(study, (*TRIALS, *more), text, version="9.9")
    if path is not None:
        path.write_text(text.getvalue())
    return rows, notes, list(csv.DictReader(io.StringIO(text.getvalue())))


def test_what_is_exported_is_read_back(study, tmp_path):
    rows, notes, _ = exported(study, tmp_path / "mine.csv")
    landscape = load_landscape(tmp_path / "mine.csv", {})
    assert rows == 8
    assert len(notes) == 2
    assert sorted(landscape.settings(), key=str) == sorted([LL, BUFFERS], key=str)
    assert landscape.time_samples(DEFAULT, MESSAGES[0]) == (10.0, 11.0)
    assert [landscape.time_samples(LL, message) for message in MESSAGES] == [(8.0,), (19.0,)]
    assert landscape.time_samples(BUFFERS, MESSAGES[1]) == (15.0,)
    assert landscape.cluster.fingerprint() == study.cluster.fingerprint()
    assert landscape.cluster.recorded_label == "recorded: 4x A100 (pair), study mine; 2026-11-22; ncclt 9.9"


def test_a_launch_of_a_policy_is_written_by_what_it_forced_on_each_message(study, tmp_path):
    table = replace(launch(6, DEFAULT, (12.0, 18.0)), phase=Phase.VERIFY, policy=LARGE_LL)
    exported(study, tmp_path / "mine.csv", [table])
    landscape = load_landscape(tmp_path / "mine.csv", {})
    assert [landscape.time_samples(DEFAULT, message) for message in MESSAGES] == [(10.0, 11.0, 12.0), (20.0, 21.0)]
    assert [landscape.time_samples(LL, message) for message in MESSAGES] == [(8.0,), (19.0, 18.0)]


def test_hosts_are_left_out_and_all_columns_are_there(study):
    _, _, rows = exported(study)
    assert set(COLUMNS) == {*REQUIRED, *OPTIONAL} == set(rows[0])
    assert "node0" not in str(rows)


def test_a_simulated_study_says_so_in_every_row(study, tmp_path):
    _, _, rows = exported(replace(study, simulated=True, launcher="simulate"), tmp_path / "s.csv")
    assert all("SIMULATED" in row["source"] and "SIMULATED" in row["other_env"] for row in rows)
    assert "SIMULATED" in load_landscape(tmp_path / "s.csv", {}).cluster.recorded_label


def test_the_list_and_one_recorded_cluster_fit_a_terminal():
    assert "mi355x-2x8: AMD MI355X, 2 nodes x 8 GPUs, RoCE, RCCL" in run("landscape", "list")
    listed = json.loads(run("landscape", "list", "--json"))["landscapes"]
    assert [entry["settings"] for entry in listed if entry["name"] == "mi355x-2x8"] == [54]
    shown = run("landscape", "show", "mi355x-2x8")
    assert "recorded: AMD MI355X, 2 nodes x 8 GPUs, RoCE, RCCL, github.com/ylerman-dn/amd-dev" in shown
    table = [line.rstrip() for line in shown.splitlines() if "iB " in line]
    assert len(table) == 15 + 18 + 18 + 15
    assert max(map(len, table)) <= 80
    best = json.loads(run("landscape", "show", "mi355x-2x8", "--json"))["best"]["all_reduce"]
    assert [(r["default_us"], r["best_us"], r["setting"]) for r in best if r["size"] == "32 MiB"] == [
        (279.3, 250.77, "ring/ll128 c=40")
    ]


def test_sources_are_those_that_readers_can_find():
    """No number of a list that only its authors have, and no nameless repository as the whole of a source."""
    for path in recorded_tables().values():
        said = path.read_text(encoding="utf-8") + path.with_suffix(".toml").read_text(encoding="utf-8")
        assert "index id" not in said, path
        assert '"a public research repository"' not in said, path


def test_a_name_that_is_not_recorded_is_refused_with_those_that_are():
    assert "one of h100-1x4, " in run("landscape", "show", "leonardo", rc=3)


@pytest.mark.parametrize(("share", "drawn"), [(0.0, ""), (-0.1, ""), (0.25, "███"), (0.01, "▏"), (5.0, "█" * 12)])
def test_a_bar_is_as_long_as_its_share(share, drawn):
    assert bar(share) == drawn
