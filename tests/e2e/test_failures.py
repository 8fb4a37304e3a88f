"""Bad input, unreachable stores, signals: a clear sentence and exit code, nothing lost and nothing half written."""

import contextlib
import gzip
import json
import os
import signal
import sqlite3
import time
from pathlib import Path

import pytest

from ncclt.core.plural import count_noun
from ncclt.errors import NotFoundError
from ncclt.store import open_store

STORE = ("--storage", "sqlite:///ncclt.db")
SIMULATED = ("--cluster", "leonardo", "--launcher", "simulate")
TUNE = ("tune", "--model", "bert", *SIMULATED, "--patience", "0", "--trials", "12", "--blocks", "4", *STORE)


def study_count(ncclt):
    """Studies in the store, if there is one, read here: a process would take seconds."""
    path = ncclt.folder / "ncclt.db"
    if not path.exists():
        return 0
    with open_store(f"sqlite:///{path}") as store:
        return len(store.studies.page().items)


SENSELESS = [
    (("--model", "bart"), 3, "bert"),
    (("--model", "bert", "--cluster", "leonard", "--launcher", "simulate"), 3, "leonardo"),
    (("--model", "bert", "--cluster", "leonardo"), 2, "--launcher simulate uses NCCL's cost model"),
    (("--model", "bert", "--nodes", "0"), 2, "--nodes must be 1 to 1,000,000, not 0"),
    (("--model", "bert", "--gpus-per-node", "9"), 2, "--gpus-per-node must be 1 to 8"),
    (("--model", "bert", *SIMULATED, "--gpus-per-node", "9"), 2, "--gpus-per-node must be 1 to 4"),
    (("--model", "bert", "--nodes", "4"), 2, "mi355x-2x8 was recorded with --nodes 2, not 4"),
    (("--model", "bert", "--nccl-version", "2.21.5"), 2, "was recorded with --nccl-version 2.28.3"),
    (("--model", "bert", "--launcher", "teleport"), 2, "simulate, replay, local"),
    (("--model", "bert", "--launcher", "replay", "--cluster", "leonardo"), 2, "--landscape"),
    (("--model", "bert", *SIMULATED, "--process-wide", "BUFSIZE"), 2, "BUFFSIZE"),
    (("--model", "bert", *SIMULATED, "--process-wide", "IB_QPS_PER_CONNECTION"), 2, "no term for NCCL_IB_QPS"),
]
"""(words, exit code, what is said)"""


def test_a_senseless_request_is_refused_and_stores_no_study(ncclt, subtests):
    for words, rc, said in SENSELESS:
        with subtests.test(" ".join(words)):
            done = ncclt("tune", *words, *STORE, rc=rc)
            assert said in done.stderr
            assert done.stdout == ""
            assert "Traceback" not in done.stderr
            assert study_count(ncclt) == 0


def write_trace(folder, name, events):
    path = folder / name
    path.write_text(json.dumps({"schemaVersion": 1, "distributedInfo": {"rank": 0}, "traceEvents": events}))
    return path


@pytest.fixture
def broken(tmp_path):
    """Files that are not what they should be."""
    whole = gzip.compress(json.dumps({"traceEvents": [{"name": "x" * 5000}]}).encode())
    (tmp_path / "cut.json.gz").write_bytes(whole[: len(whole) // 2])
    write_trace(tmp_path, "silent.json", [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 2}])
    (tmp_path / "other.json").write_text('{"hello": "world"}')
    (tmp_path / "empty.json").write_text("")
    (tmp_path / "columns.csv").write_text("system,size_bytes\nx,8\n")
    return tmp_path


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("cut.json.gz", "cut.json.gz"),
        ("silent.json", "no collectives"),
        ("other.json", "other.json"),
    ],
)
def test_a_trace_that_is_none_is_refused_and_stores_nothing(ncclt, broken, file, said):
    done = ncclt("profile", "import", broken / file, "--name", "mine", *STORE, rc=1)

    assert said in done.stderr
    assert "hint:" in done.stderr
    with open_store(f"sqlite:///{ncclt.folder / 'ncclt.db'}") as store, pytest.raises(NotFoundError):
        store.workloads.get("mine")


@pytest.mark.parametrize(
    ("url", "rc"),
    [
        ("postgresql://nobody@127.0.0.1:9/none", 69),
        ("sqlite:////proc/none/ncclt.db", 69),
        ("mysql://localhost/x", 2),
    ],
)
def test_a_store_that_cannot_be_reached_is_said_in_one_sentence(ncclt, url, rc):
    done = ncclt("tune", "--model", "bert", "--storage", url, rc=rc)

    assert done.stdout == ""
    assert "hint:" in done.stderr
    assert "Traceback" not in done.stderr


def stored_trials(folder):
    """Trials in the store, read beside the running process."""
    path = folder / "ncclt.db"
    if not path.exists():
        return 0
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=60)
    try:
        return connection.execute("select count(*) from trials").fetchone()[0]
    except sqlite3.OperationalError:
        return 0
    finally:
        connection.close()


def signalled(ncclt, *words, after, by):
    """Run ncclt, send it a signal once so many trials are stored, and return its exit code, stdout and stderr."""
    tuner = ncclt.nursery.begin(words, ncclt.environment, ncclt.folder)
    sent = signal.SIGKILL
    try:
        wait_for_trials(ncclt, tuner, after)
        sent = by
    finally:
        with contextlib.suppress(ProcessLookupError):  # it has ended, which its exit code says
            os.kill(tuner, sent)
        ended = ncclt.nursery.end()
    return ended


def wait_for_trials(ncclt, tuner, number):
    for _ in range(4800):
        if stored_trials(ncclt.folder) >= number:
            return
        assert Path("/proc", str(tuner)).exists(), f"it has ended before trial {number}"
        time.sleep(0.05)
    pytest.fail(f"no {number} trials within 240 s")


def test_kill_9_loses_no_completed_trial_and_the_study_ends_as_if_nothing_had_happened(ncclt, tmp_path):
    for number in (3, 7):
        ended, _out, err = signalled(ncclt, *TUNE, "--quiet", after=number, by=signal.SIGKILL)
        assert ended == -signal.SIGKILL, err
        assert stored_trials(ncclt.folder) >= number
        (study,) = json.loads(ncclt("studies", "list", "--json", *STORE).stdout)["studies"]
        assert study["state"] == "interrupted"
    before = stored_trials(ncclt.folder)

    resumed = ncclt(*TUNE)
    assert "Resuming study bert-leonardo-2x4-nccl2.22.3-simulate" in resumed.stderr
    assert f" after {count_noun(before, 'trial')}" in resumed.stderr

    undisturbed = ncclt(*TUNE[:-1], "sqlite:///whole.db", "--json")
    document = json.loads(ncclt(*TUNE, "--json").stdout)
    assert document == json.loads(undisturbed.stdout)


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "Slurm preempts"])
def test_one_signal_finishes_the_trial_saves_and_the_same_command_goes_on(ncclt, by):
    ended, stdout, stderr = signalled(ncclt, *TUNE, "--json", after=4, by=by)

    assert ended == 130, stderr
    assert "finishing the running trial" in stderr
    document = json.loads(stdout)
    assert (document["state"], document["verdict"]) == ("interrupted", None)
    assert len(document["trials"]) == stored_trials(ncclt.folder)
    assert ncclt("env", "--cluster", "leonardo", "--model", "bert", *STORE, rc=3).stdout == ""


def test_values_come_from_the_nearest_place(ncclt):
    """Flag before NCCLT_* before project file before user file."""
    (ncclt.folder / "ncclt.toml").write_text('storage = "sqlite:///project.db"\n')
    assert "project.db" in ncclt("config", "show").stdout
    ncclt("admin", "store", "migrate")
    assert (ncclt.folder / "project.db").exists()
    ncclt.variables["NCCLT_STORAGE"] = "sqlite:///variable.db"
    ncclt("admin", "store", "migrate")
    assert (ncclt.folder / "variable.db").exists()
    ncclt("admin", "store", "migrate", "--storage", "sqlite:///flag.db")
    assert (ncclt.folder / "flag.db").exists()
    assert json.loads(ncclt("config", "show", "--json").stdout)["values"]["storage"]["origin"] == "NCCLT_STORAGE"
    (ncclt.folder / "ncclt.toml").write_text('storrage = "x"\n')
    assert "storrage" in ncclt("config", "show", rc=2).stderr
