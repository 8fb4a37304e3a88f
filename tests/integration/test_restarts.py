"""`ncclt autotune --restarts`: trainings that save on a signal and resume, a real one over gloo among them."""

import os
import runpy
import signal
import subprocess
import sys
import time
from itertools import zip_longest
from pathlib import Path

import pytest

from ncclt.core.message import Collective
from ncclt.core.recommendation import Decision
from ncclt.core.segment import CONTROL
from ncclt.core.trial import RESTARTS
from ncclt.core.workload import Workload
from ncclt.pipeline.candidates import propose_candidates
from ncclt.pipeline.restarts import RestartRequest, SegmentedTraining, TrainingArm, describe_training
from ncclt.profile.record import command
from ncclt.prove.comparison import Comparison
from ncclt.store import open_store
from ncclt.store.clock import utc_now
from ncclt.testing.samples import sample_cluster

HERE = Path(__file__).parent
install_job = runpy.run_path(str(HERE.parent / "fakes" / "quick_job.py"))["install"]
PATIENT_S = 240.0

JOB = '''
"""INJECTED DELAY: a step takes 8 ms, 4 ms with FAST, 4 ms more with SLOW."""
import os, pathlib, signal, sys, time
saved, asked = pathlib.Path("saved"), []
open("starts", "a").write(f"{os.environ.get('FAST', '-')} {os.environ.get('BROKEN', '-')}\\n")
open("variables", "a").write("+".join(name for name in ("FAST", "SLOW") if name in os.environ) + "\\n")
if "BROKEN" in os.environ or pathlib.Path("port-is-busy").exists():
    pathlib.Path("port-is-busy").unlink(missing_ok=True)
    sys.exit(3)
if "NO_HANDLER" not in os.environ:
    signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
import torch
from torch.optim.optimizer import Optimizer
if "GLOO" in os.environ:
    facts = {"is_available": True, "is_initialized": True, "get_rank": 0, "get_world_size": 1, "get_backend": "gloo"}
    vars(torch.distributed).update({name: lambda value=value: value for name, value in facts.items()})
done = int(saved.read_text()) if saved.exists() and "FORGETS" not in os.environ else 0
optimizer = Optimizer()
optimizer.state = {0: {"step": done}}
while done < int(sys.argv[1]):
    time.sleep(0.008 - 0.004 * ("FAST" in os.environ) + 0.004 * ("SLOW" in os.environ))
    done += 1
    optimizer.state[0]["step"] = done
    optimizer.step()
    if "SAVES" in os.environ and done % 10 == 0:
        saved.write_text(str(done))
    if asked and "DEAF" not in os.environ:
        saved.write_text(str(done))
        if "BUSY" in os.environ:
            pathlib.Path("port-is-busy").touch()
        sys.exit(7)
saved.write_text(str(done))
sys.exit(int(os.environ.get("ENDS_WITH", "0")))
'''


@pytest.fixture
def training(tmp_path, monkeypatch):
    """Return a caller of a training with candidates by name; it returns exit code, lines and segments."""
    program, _script = install_job(tmp_path)
    (tmp_path / "train.py").write_text(JOB)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "_TICK_S", 0.02)
    monkeypatch.setattr("ncclt.pipeline.restarts._PAUSE_S", 0.0)

    def run(steps, arms, *, max_cost=1.0, hours=0.0, timeout_s=60.0, today=(), number=signal.SIGTERM, **environ):
        said, states = [], run.states = [], []
        request = RestartRequest(
            argv=(program, "train.py", str(steps)),
            model="nasnetmobile",
            cluster=sample_cluster(),
            today=today,
            how=Comparison(steps=5, warmup=2, directory=tmp_path, timeout_s=timeout_s),
            number=number,
            max_cost=max_cost,
            hours=hours,
        )
        bare = {name: value for name, value in os.environ.items() if not name.startswith("NCCL")}
        with open_store(f"sqlite:///{tmp_path / 'store.db'}") as store:

            def say(line):
                said.append(line)
                states.append(describe_training(request, store))

            code = SegmentedTraining(
                request,
                store,
                environ=bare | {"PYTHONPATH": str(tmp_path / "site")} | dict(today) | environ,
                find_arms=lambda workload, _folder: _arms(workload, arms),
                say=say,
                now=utc_now,
            ).run()
            segments = store.records.segments("nasnetmobile")
            run.published = store.recommendations.find(model="nasnetmobile")
        assert not list(tmp_path.glob(".ncclt-*"))
        return code, "\n".join(said), segments

    return run


def _arms(workload, arms):
    assert isinstance(workload, Workload)
    candidates = propose_candidates(workload, sample_cluster(), most=1, by_plugin=True)
    return tuple(
        TrainingArm(name=name.lower(), label=name, set_env=((name, "1"),), candidate=one)
        for name, one in zip_longest(arms, candidates)
    )


@pytest.mark.thorough
def test_training_ends_with_the_fastest_arm(training):
    code, said, segments = training(2000, ["FAST", "SLOW"])
    assert code == 0
    assert "fast wins: training steps are faster: +" in said
    assert sum(one.arm == "slow" for one in segments) < sum(one.arm == "fast" for one in segments)
    assert segments[0].arm == CONTROL
    assert segments[-1].arm == "fast"
    assert segments[-1].block == -1
    assert all(one.is_stopped for one in segments[:-1])
    assert all(one.restart_s > 0 for one in segments[1:])
    assert Path("saved").read_text() == "2000"


def test_training_that_ends_by_itself_tries_an_arm_at_each_of_its_own_starts(training):
    steps, said, segments = 60, "", ()
    while "fast wins" not in said and len(segments) < 30:
        before = segments
        code, said, segments = training(steps, ["FAST"], NO_HANDLER="1")
        assert (code, segments[:-1]) == (0, before)
        assert ("run the same command to try the next arm" in said) != ("fast wins" in said)
        steps += 15
    assert {one.restart_s for one in segments} == {0.0}
    (found,) = training.published
    assert (found.launcher, found.table.verdict.decision) == (RESTARTS, Decision.TUNED)
    assert found.table.verdict.reason in said
    assert f"Revision {found.id} is a candidate, not yet for all jobs" in said
    assert training(steps, ["FAST"], NO_HANDLER="1")[2][-1].arm == "fast"
    assert training.published == (found,)


def test_budget_delays_restarts_and_the_next_one_is_announced(training):
    _code, said, segments = training(150, ["FAST"], max_cost=0.001)
    assert len(segments) == 1
    assert said.count("--max-cost 0.001 affords the next one in ") == 1
    assert not any("not started" in line for state in training.states[1:-1] for line in state)
    assert any("start 1 with control; next restart affordable in " in state[0] for state in training.states)
    assert any("candidate fast: FAST" in state for state in training.states)
    assert "undecided after 1 segment;" in said
    assert "fast: 0 of at least 6 pairs of segments measured" in said
    assert len(training(300, ["FAST"], max_cost=0.001, hours=100.0)[2]) > 1


@pytest.mark.parametrize(("name", "why"), [("NO_HANDLER", "no handler for SIGTERM"), ("GLOO", "no NCCL in this job")])
def test_training_that_cannot_be_tuned_is_left_alone(training, name, why):
    code, said, segments = training(200, ["FAST"], **{name: "1"})
    assert code == 0
    assert why in said
    assert len(segments) == 1


@pytest.mark.parametrize(
    ("environ", "code", "why"),
    [
        ({}, 0, "no optimizer step was seen; --restarts needs"),
        ({"BROKEN": "1"}, 3, "the command failed with exit code 3"),
    ],
)
def test_first_start_without_a_step_stops_the_experiment(training, environ, code, why):
    """The program makes no step: it has none left, or it fails before."""
    for _ in range(2):
        found, said, _segments = training(0, ["FAST"], **environ)
        assert found == code
        assert said.splitlines()[-1].startswith(f"ncclt: stopped: {why}")
        assert "the same command" not in said


def test_dry_run_refuses_a_missing_cluster_as_the_run_does(tmp_path):
    words = ("autotune", "--restarts", "--dir", str(tmp_path), "--", "python", "train.py")
    environ = os.environ | {"NCCLT_STORAGE": f"sqlite:///{tmp_path / 'store.db'}", "CUDA_VISIBLE_DEVICES": ""}
    errors = []
    for dry in ((), ("--dry-run",)):
        argv = [sys.executable, "-m", "ncclt", *words[:2], *dry, *words[2:]]
        done = subprocess.run(argv, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
        errors.append((done.returncode, done.stdout, done.stderr))
    assert errors[0] == errors[1]
    assert "--cluster" in errors[1][2]


def test_signal_before_a_start_ends_the_run_and_leaves_nothing(training):
    def propose():
        signal.raise_signal(signal.SIGTERM)
        yield "FAST"

    training(60, ["FAST"], max_cost=0.001)
    before = Path("starts").read_text()
    code, said, _segments = training(60, propose())
    assert code == 128 + signal.SIGTERM
    assert "undecided after 1 segment" in said.splitlines()[-2]
    assert Path("starts").read_text() == before


def test_training_that_does_not_resume_is_restarted_once(training):
    code, said, segments = training(150, ["FAST"], FORGETS="1")
    assert code == 0
    assert "did not resume where it stopped" in said
    assert len(segments) == 2


def test_training_that_ignores_the_signal_goes_on(training):
    code, said, segments = training(1100, ["FAST"], DEAF="1", FAST="1")
    assert code == 0
    assert "ignores SIGTERM" in said
    assert "--signal SIGKILL ends it without asking" in said
    assert len(segments) == 1


def test_training_is_killed_with_consent_and_resumes_from_its_own_checkpoint(training):
    code, said, segments = training(100, ["FAST"], number=signal.SIGKILL, NO_HANDLER="1", SAVES="1")
    assert code == 0, said
    assert [one.is_stopped for one in segments][:2] == [True, bool(segments[2:])]
    assert Path("saved").read_text() == "100"


def test_start_that_is_too_short_to_measure_is_told_what_to_do(training):
    for _ in range(2):  # as long as it is no longer, to run it again is of no use
        Path("saved").unlink(missing_ok=True)
        code, said, _segments = training(4, ["FAST"])
        assert code == 0
        line = said.splitlines()[-1]
        assert line.startswith("ncclt: stopped: a start is measured in its first 7 steps, and this one ended before: ")
        assert "ncclt tune --on-jobs" in line


def test_failing_candidate_is_out_and_the_training_goes_on(training):
    code, said, segments = training(200, ["BROKEN"])
    assert code == 0
    assert "broken: the policy failed: exit code 3" in said
    assert Path("saved").read_text() == "200"
    assert sum(one.arm == "broken" for one in segments) == 1


def test_restart_that_fails_once_is_repeated(training):
    code, _said, _segments = training(200, ["FAST"], BUSY="1")
    assert code == 0
    assert Path("saved").read_text() == "200"


def test_exit_code_of_the_training_is_kept(training):
    assert training(20, ["FAST"], max_cost=0.001, ENDS_WITH="9")[0] == 9


def test_todays_variables_are_of_the_control_alone(training):
    segments = training(200, ["FAST"], today=(("SLOW", "1"),))[2]
    assert {one.arm for one in segments} == {CONTROL, "fast"}
    assert set(Path("variables").read_text().split()) == {"SLOW", "FAST"}


def test_an_error_of_our_own_ends_the_experiment_alone(training, monkeypatch):
    monkeypatch.setattr("ncclt.pipeline.restarts.read_step_times", lambda *_a, **_k: 1 / 0)
    code, said, _segments = training(200, ["FAST"])
    assert code == 0
    assert "no more restarts: ZeroDivisionError" in said
    assert Path("saved").read_text() == "200"


def _ncclt(tmp_path, *words, **more):
    environ = {name: value for name, value in os.environ.items() if not name.startswith("NCCL")} | more
    environ |= {"NCCLT_STORAGE": f"sqlite:///{tmp_path / 'store.db'}", "NCCLT_PLUGIN": "/nonexistent/plugin.so"}
    own = ("--cluster", "dgx-a100", "--nodes", "1", "--max-cost", "1", "--window", "5", "--warmup", "3")
    argv = [sys.executable, "-m", "ncclt", "autotune", "--restarts", *own, *words]
    return subprocess.Popen(argv, cwd=tmp_path, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.thorough
def test_gloo_training_of_two_ranks_is_recorded_restarted_and_resumes(tmp_path):
    pytest.importorskip("torch.distributed")
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    process = _ncclt(tmp_path, "--force", "--", *torchrun, HERE / "training" / "paced.py", "8", "resumes")
    _out, err = process.communicate(timeout=PATIENT_S)
    assert process.returncode == 0, err
    first, last = (line.rsplit(maxsplit=1) for line in (tmp_path / "log").read_text().splitlines())
    assert (first[0], last) == ("saved after", ["trained to the end", str(int(first[1]) + 8)]), err
    assert "candidate " in err
    with open_store(f"sqlite:///{tmp_path / 'store.db'}") as store:
        (name,) = [one.name for one, shipped in store.workloads.entries() if not shipped]
        assert store.workloads.get(name).collectives == {Collective.ALL_REDUCE}
        before, after = store.records.segments(name)
    assert (before.arm, before.is_stopped, after.is_stopped) == (CONTROL, True, False)
    assert after.restart_s > 0


def test_ctrl_c_and_sigterm_reach_the_training_and_end_it(tmp_path):
    program, _script = install_job(tmp_path)
    (tmp_path / "train.py").write_text(JOB)
    words = ("--model", "nasnetmobile", "--gpus-per-node", "2", "--max-cost", "0.001")
    process = _ncclt(tmp_path, *words, "--", program, "train.py", "99999", PYTHONPATH=str(tmp_path / "site"))
    until_s = time.monotonic() + PATIENT_S
    while not (tmp_path / "starts").exists() and time.monotonic() < until_s:
        time.sleep(0.05)
    time.sleep(0.5)
    process.send_signal(signal.SIGTERM)
    _out, err = process.communicate(timeout=PATIENT_S)
    assert process.returncode == 7, err
    assert (tmp_path / "saved").exists()
    assert len((tmp_path / "starts").read_text().splitlines()) == 1
    assert "no result after 1 start" in err or "undecided after 1 segment" in err
    assert not list(tmp_path.glob(".ncclt-*"))
