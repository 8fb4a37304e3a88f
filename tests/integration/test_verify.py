"""Verifying by the command line: real trainings over gloo through torchrun, and quick jobs with a stand-in PyTorch."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import quick_job

from ncclt.core.nccl_version import NcclVersion
from ncclt.core.policy import uniform_policy
from ncclt.core.recommendation import Decision, PolicyVerdict
from ncclt.core.verification import Side
from ncclt.store import open_store
from ncclt.testing.samples import RING, sample_recommendation

PATIENT_S = 240.0
TRAINING = Path(__file__).parent / "training" / "paced.py"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(TRAINING)]

LOOKER = """
import os, pathlib, runpy, sys
path = os.environ.get("NCCL_TUNER_PLUGIN")
with open("seen", "a") as file:
    print(path and pathlib.Path(path).is_file(), "NCCLT_TABLE" in os.environ, file=file)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
NO_PLUGIN = "/nonexistent/plugin.so"


@pytest.fixture
def job(tmp_path):
    """A quick job, and what it needs in its environment."""
    return quick_job.install(tmp_path)


def _arguments(tmp_path, options, command):
    # Three blocks may decide; more than four would only take longer here.
    counts = ["--warmup", "3", "--steps", "8", "--blocks", "4"]
    return ["verify", "--storage", _url(tmp_path), "--dir", str(tmp_path), *counts, *options, "--", *command]


def _environ(tmp_path, **more):
    bare = {name: value for name, value in os.environ.items() if not name.startswith("NCCL")}
    return bare | {"PYTHONPATH": str(tmp_path / "site")} | more


@pytest.fixture
def verify(nursery, tmp_path):
    """Return a caller of `ncclt verify OPTIONS -- COMMAND`."""

    def call(options, command, **environ):
        words = _arguments(tmp_path, options, command)
        return subprocess.CompletedProcess(words, *nursery(words, _environ(tmp_path, **environ), tmp_path))

    return call


def _url(tmp_path):
    return f"sqlite:///{tmp_path / 'store.db'}"


def _stored(tmp_path, **wanted):
    with open_store(_url(tmp_path)) as store:
        return store.records.verifications(**wanted)


def _publish(tmp_path, decision, *, launcher="local"):
    """Publish a table and variables, both with one decision."""
    published = sample_recommendation("rec1")
    policy = uniform_policy(RING, published.collectives, version=NcclVersion(2, 28, 9))
    verdict = replace(published.table.verdict, decision=decision)
    place = {"simulated": False, "launcher": launcher}
    table = replace(published.table, verdict=verdict)
    with open_store(_url(tmp_path)) as store:
        store.revisions.publish(
            replace(published, table=table, variables=PolicyVerdict(policy=policy, verdict=verdict), **place)
        )


def test_true_negative_nccl_variables_cannot_change_a_job_that_does_not_read_them(tmp_path, verify, job):
    """Without the plugin the recommended variables reach the job, where nothing reads them."""
    _publish(tmp_path, Decision.TUNED)
    done = verify(["--model", "toy", "--cluster", "pair", "--json"], [*job, "100000"], SLOW="1", NCCLT_PLUGIN=NO_PLUGIN)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["verdict"]["decision"] != "tuned", document["verdict"]
    assert document["tuned_env"]["NCCL_ALGO"]
    assert document["base_env"] == {}
    assert "Table skipped" in document["notes"][0]
    sides = [launch["side"] for launch in document["launches"]]
    assert {frozenset(pair) for pair in zip(sides[::2], sides[1::2], strict=True)} == {frozenset(("base", "tuned"))}
    assert len(sides) in (12, 16)
    (stored,) = _stored(tmp_path, cluster="pair", model="toy", recommendation="rec1")
    assert stored.to_document() == document


def test_the_ranks_of_torchrun_are_timed_and_ended_after_the_window(tmp_path, verify):
    """One side fails at once, first or second, so that two launches do; a stand-in for PyTorch makes the many."""
    pytest.importorskip("torch.distributed")
    done = verify(["--base", "SLOW=1", "--env", "FAIL=1", "--json"], [*TORCHRUN, "100000"])
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["ranks"], document["hosts"]) == (2, 1)
    timed, failed = sorted(_stored(tmp_path)[0].launches, key=lambda launch: launch.side is Side.TUNED)
    assert len(timed.step_us) == 8
    assert all(29_000 < time_us < 2_000_000 for time_us in timed.step_us), "SLOW=1 pauses 30 ms a step"
    assert failed.failure


def test_true_positive_an_environment_that_slows_the_job_with_table_and_progress(tmp_path, verify, job):
    done = verify(["--base", "SLOW=1", "--model", "toy"], [*job, "100000"])
    assert done.returncode == 0, done.stderr
    header, base, tuned, verdict = done.stdout.splitlines()
    assert " ".join(header.split()) == "side launches steps p50 ms p75 ms p90 ms p95 ms"
    assert base.split()[:3] in (["base", "6", "48"], ["base", "8", "64"])  # three blocks, or four on a busy machine
    assert tuned.split()[1:3] == base.split()[1:3]
    assert float(base.split()[3]) > 19 > float(tuned.split()[3]) > 3
    assert verdict.startswith("verdict: tuned: ")
    assert re.search("launch 12 of up to 16, (base|tuned): ", done.stderr)
    assert "trained to the end" not in done.stdout + done.stderr
    assert not list(tmp_path.glob(".ncclt-record-*"))
    (stored,) = _stored(tmp_path, model="toy")
    assert stored.verdict.decision is Decision.TUNED
    assert 1.5 < stored.verdict.speedup < 6.0
    assert (stored.base_env, stored.tuned_env, stored.recommendation) == ((("SLOW", "1"),), (), "")


def test_both_sides_of_two_environments_have_the_users_own_variables_but_logs(tmp_path, verify, job):
    options = ["--env", "NCCL_PROTO=LL", "--run-to-end", "--verbose"]
    done = verify(options, [*job, "12"], NCCL_ALGO="Tree", NCCL_DEBUG="INFO")
    assert done.returncode == 0, done.stderr
    assert "removed from both sides: NCCL_DEBUG" in done.stderr
    both, one = (done.stderr.splitlines().count(names) for names in ("NCCL_ALGO NCCL_PROTO", "NCCL_ALGO"))
    assert both == one
    assert both in (6, 8)  # three blocks or four


def test_the_baseline_of_a_recommendation_is_what_the_job_runs_today(tmp_path, verify, job):
    """The policy takes the place of the user's own tuning; the site's variables are on both sides."""
    _publish(tmp_path, Decision.TUNED)
    options = ["--model", "toy", "--cluster", "pair", "--dry-run", "--json"]
    own = {"NCCL_MIN_NCHANNELS": "4", "NCCL_IB_TIMEOUT": "22", "NCCL_DEBUG": "INFO"}
    planned = verify(options, job, NCCLT_PLUGIN=NO_PLUGIN, **own)
    assert planned.returncode == 0, planned.stderr
    document = json.loads(planned.stdout)
    assert document["base_env"] == {"NCCL_MIN_NCHANNELS": "4"}
    assert "NCCL_MIN_NCHANNELS" not in document["tuned_env"]
    assert document["removed_env"] == ["NCCL_DEBUG"]


def test_base_that_fails_stops_with_its_last_lines(tmp_path, verify, job):
    done = verify(["--base", "FAIL=1"], [*job, "100"])
    assert done.returncode == 1
    assert "exit code 1\nno such network" in done.stderr
    assert "hint: " in done.stderr
    assert done.stdout == ""
    assert not _stored(tmp_path)


def test_tuned_side_that_fails_is_disqualified_and_kept(tmp_path, verify, job):
    done = verify(["--env", "FAIL=1"], [*job, "100"])
    assert done.returncode == 0, done.stderr
    assert "verdict: keep-default: the policy failed: exit code 1" in done.stdout
    (stored,) = _stored(tmp_path)
    (failed,) = [one for one in stored.launches if one.side is Side.TUNED]
    assert failed.failure == "exit code 1\nno such network"
    assert f"launch {failed.order + 1}, tuned, failed: exit code 1\nno such network" in done.stderr
    assert len(stored.launches) == 2


@pytest.mark.parametrize("training", [["4"], ["0"]])
def test_training_that_ends_before_the_window_is_a_failure(tmp_path, verify, job, training):
    done = verify(["--env", "X=1"], [*job, *training])
    assert done.returncode == 1
    assert "no step times: " in done.stderr


def test_a_proven_table_is_delivered_as_to_any_job_and_removed_afterwards(tmp_path, verify, job):
    """Every rank gets the table, and finds the plugin in the folder that it shares; the reference has neither."""
    _publish(tmp_path, Decision.TUNED)
    plugin = tmp_path / "libnccl-tuner-ncclt.so"
    plugin.write_bytes(b"ELF")
    looker = [*job[:1], "-c", LOOKER, *job[1:], "100000"]
    done = verify(["--model", "toy", "--cluster", "pair", "--json", "--blocks", "4"], looker, NCCLT_PLUGIN=str(plugin))
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["tuned_env"]["NCCLT_RECOMMENDATION"] == "rec1"
    assert sorted(set((tmp_path / "seen").read_text().splitlines())) == ["None False", "True True"]
    assert not list(tmp_path.glob(".ncclt-*"))
    assert len(_stored(tmp_path, recommendation="rec1")) == 1


def test_table_alone_needs_the_plugin(tmp_path, verify, job):
    with open_store(_url(tmp_path)) as store:
        store.revisions.publish(replace(sample_recommendation("rec1"), simulated=False, launcher="local"))
    done = verify(["--model", "toy", "--cluster", "pair"], [*job, "100"], NCCLT_PLUGIN=NO_PLUGIN)
    assert done.returncode == 2
    assert "ncclt admin plugin build" in done.stderr
    assert not list(tmp_path.glob(".ncclt-*"))


def test_what_was_not_measured_cannot_be_verified_by_cpus(tmp_path, verify):
    """After the demo: no NCCL takes part in a job here, so equal step times would prove nothing."""
    _publish(tmp_path, Decision.TUNED, launcher="replay")
    marker = tmp_path / "ran"
    asked = ["--model", "toy", "--cluster", "pair"]
    done = verify(asked, ["touch", str(marker)], CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 3
    assert "toy on pair cannot be verified here: its times are replayed from a recording" in done.stderr
    assert "on 2 x 4 real GPUs, `ncclt autotune -- COMMAND`" in done.stderr
    assert not marker.exists()
    assert verify(asked, [], CUDA_VISIBLE_DEVICES="").stderr == done.stderr, "without a command too"
    planned = verify([*asked, "--dry-run"], ["srun", "touch", str(marker)], CUDA_VISIBLE_DEVICES="")
    assert planned.returncode == 0, "srun may start it where GPUs are"


def test_two_commands_are_compared(tmp_path, verify, job):
    """The judged command takes a fifth of the other's time for a step."""
    slow = f"env SLOW=1 {shlex.join(job)} 100000"
    done = verify(["--against", slow], [*job, "100000"])
    assert done.returncode == 0, done.stderr
    _header, against, command, verdict = done.stdout.splitlines()
    assert (against.split()[0], command.split()[0]) == ("against", "command")
    assert re.match(r"verdict: faster: speed-up over the command of --against: \d\.\d\dx \(95 % CI ", verdict)
    assert "only if both do the same work in a step" in done.stderr
    (stored,) = _stored(tmp_path)
    assert stored.verdict.decision is Decision.TUNED
    assert (stored.base_argv, stored.argv) == (tuple(shlex.split(slow)), (*job, "100000"))
    assert (stored.base_env, stored.tuned_env) == ((), ())


def test_keep_default_leaves_nothing_to_verify(tmp_path, verify, job):
    _publish(tmp_path, Decision.KEEP_DEFAULT)
    done = verify(["--model", "toy", "--cluster", "pair"], [*job, "100"])
    assert done.returncode == 3
    assert "there is nothing to verify: " in done.stderr
    assert "--env NAME=VALUE" in done.stderr
    assert not _stored(tmp_path)


def test_dry_run_shows_both_sides_and_runs_nothing(tmp_path, verify, job):
    _publish(tmp_path, Decision.TUNED)
    marker = tmp_path / "ran"
    options = ["--model", "toy", "--cluster", "pair", "--dry-run"]
    told = json.loads(verify([*options, "--json"], ["touch", str(marker)], NCCLT_PLUGIN=NO_PLUGIN).stdout)
    assert told["tuned_env"]["NCCL_ALGO"]
    pairs = list(zip(told["order"][::2], told["order"][1::2], strict=True))
    assert len(pairs) == 8
    assert {*map(frozenset, pairs)} == {frozenset({"base", "tuned"})}
    assert "NCCL_ALGO=" in verify(options, ["touch", str(marker)], NCCLT_PLUGIN=NO_PLUGIN).stdout
    two = verify(["--against", "touch 'a b'", "--dry-run"], ["touch", str(marker)]).stdout
    assert f"argv: touch {marker}\nbase_argv: touch 'a b'\n" in two
    assert not marker.exists()
    assert not _stored(tmp_path)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "--cluster"),
        (["--env", "X"], "NAME=VALUE"),
        (["--env", "A=1", "--base", "A=1"], "same environment"),
        (["--against", "true"], "both sides are the same command"),
        (["--against", "a 'b"], "--against"),
        (["--env", "A=1", "--blocks", "2"], "--blocks"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path, verify, options, said):
    done = verify(options, ["true"])
    assert done.returncode == 2
    assert said in done.stderr


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.thorough), signal.SIGTERM])
def test_interrupted_leaves_no_process_no_folder_and_no_verification(tmp_path, job, start, number):
    """Ranks of torchrun open sessions of their own, as the sleeper does: they are ended, too."""
    arguments = _arguments(tmp_path, ["--env", "X=1", "--run-to-end"], [*job, "1000000"])
    running = start(
        [sys.executable, "-m", "ncclt", *arguments],
        env=_environ(tmp_path) | {"SLEEPER": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + PATIENT_S
    while not list(tmp_path.glob(".ncclt-record-*/ranks/*.json")) and time.monotonic() < deadline:
        time.sleep(0.05)
    (folder,) = tmp_path.glob(".ncclt-record-*")
    assert len(_carriers(folder)) == 2
    running.send_signal(number)
    _out, err = running.communicate(timeout=PATIENT_S)
    assert running.returncode == 130, err
    assert "nothing saved" in err
    assert not folder.exists()
    assert _carriers(folder) == []
    assert not _stored(tmp_path)


def _carriers(folder):
    """Return the processes that have a folder in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and str(folder).encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def test_command_that_is_compared_with_fails(tmp_path, verify, job):
    done = verify(["--against", "false"], [*job, "100"])
    assert done.returncode == 1
    assert "the command of --against fails: exit code 1" in done.stderr
    failed = verify(["--against", f"{shlex.join(job)} 100"], ["false"])
    assert "verdict: not faster: the command failed: exit code 1" in failed.stdout
