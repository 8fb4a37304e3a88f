"""`ncclt autotune`: a job, a real one over gloo among them, becomes a result by one command that may be run again."""

import json
import runpy
import shlex
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from ncclt.core.policy import Policy, Rule
from ncclt.core.recommendation import Decision, PolicyVerdict
from ncclt.store import open_store
from ncclt.testing.samples import RING

TESTS = Path(__file__).resolve().parents[1]
PACED = TESTS / "integration" / "training" / "paced.py"
QUICK_JOB = runpy.run_path(str(TESTS / "fakes" / "quick_job.py"))
STORE = ("--storage", "sqlite:///ncclt.db")
PATIENT_S = 240.0
CEILING_OF_CPUS = "Upper bound on savings: unknown, exposed communication was not recorded"


@pytest.fixture
def job(ncclt):
    """A quick job that writes a line for each of its starts."""
    *command, script = QUICK_JOB["install"](ncclt.folder)
    Path(script).write_text('open("starts", "a").write("x\\n")\n' + QUICK_JOB["JOB"])
    ncclt.variables["PYTHONPATH"] = str(ncclt.folder / "site")
    return (*command, script, "100000")


@pytest.fixture
def measured(ncclt):
    """The options for a stored workload on real launches, of the stand-in for nccl-tests."""
    folder = ncclt.folder / "nccl-tests"
    folder.mkdir()
    runpy.run_path(str(TESTS / "fakes" / "nccl_tests_stand_in.py"))["install"](folder)
    ncclt.variables["NCCLT_PLUGIN"] = "/nonexistent/plugin.so"
    ncclt.variables["NCCLT_ALLOW_DIFFERENCE"] = "NO_GPU"
    return (
        *("--model", "nasnetmobile", "--cluster", "dgx-a100", "--nodes", "1"),
        *("--gpus-per-node", "2", "--launcher", "local", "--nccl-tests"),
        folder,
        *("--trials", "2", "--blocks", "4", "--warmup", "2", "--window", "4"),
        *STORE,
    )


def starts(ncclt):
    path = ncclt.folder / "starts"
    return len(path.read_text().splitlines()) if path.exists() else 0


def prove_a_gain(ncclt):
    """Publish a newer revision of the study's result, which nothing on this machine could have proven."""
    with open_store(f"sqlite:///{ncclt.folder / 'ncclt.db'}") as store:
        (found,) = store.recommendations.find(model="nasnetmobile")
        rules = tuple(
            Rule(collective=one, algorithm=RING.algorithm, protocol=RING.protocol) for one in sorted(found.collectives)
        )
        verdict = replace(found.table.verdict, decision=Decision.TUNED, reason="", speedup=1.2, interval=(1.1, 1.3))
        proven = PolicyVerdict(policy=Policy(rules=rules), verdict=verdict)
        store.revisions.publish(replace(found, id="proven", table=proven, variables=proven))


def test_a_gloo_job_of_one_launch_keeps_the_default_and_nothing_is_done_twice(ncclt):
    pytest.importorskip("torch.distributed")
    torchrun = ("torch.distributed.run", "--standalone", "--nproc-per-node=2")
    command = (
        *("autotune", "--launcher", "torchrun", "--backend", "gloo", "--trials", "1"),
        *("--warmup", "2", "--window", "3"),
        *STORE,
        "--",
        sys.executable,
        "-m",
        *torchrun,
        PACED,
    )
    first = ncclt(*command, "100000")
    assert "all_reduce  float32  262,144" in first.stdout, "what is sent is shown"
    assert CEILING_OF_CPUS in first.stdout
    assert "keep-default" in first.stdout
    assert "too few settings" not in first.stdout
    assert "Step times not compared: both sides would run with the NCCL default" in first.stdout
    for stage in ("record: ncclt profile record --name paced-", "tune: ncclt tune --model paced-"):
        assert stage in first.stderr
    assert not list(ncclt.folder.glob(".ncclt-*"))

    again = ncclt(*command, "100000")
    assert "using the recording" in again.stderr
    assert "This study is finished" in again.stderr
    study = json.loads(ncclt(*command[:1], "--json", *command[1:], "100000").stdout)["tune"]
    assert (study["verdict"], study["simulated"], study["launcher"]) == ("keep-default", False, "torchrun")
    assert "NCCL takes no part" in study["reason"]
    assert study["policy"] == {"rules": [], "parameters": {}}
    assert [trial["outcome"] for trial in study["trials"]] == ["ok"]
    assert study["gpu_hours"] > 0
    assert all(row["default_us"] > 0 for row in study["messages"])

    plan = json.loads(ncclt(*command[:1], "--dry-run", "--json", *command[1:], "100000").stdout)["stages"]
    tune = next(shlex.split(one["command"]) for one in plan if one["stage"] == "tune")
    assert json.loads(ncclt(*tune[1:], "--json").stdout) == study, "nothing is launched again"
    assert {one["stage"]: one["state"] for one in plan} == {
        "record": "stored",
        "look": CEILING_OF_CPUS,
        "tune": "stored: done",
        "compare": "if a gain is validated",
        "use": "if steps are faster",
    }
    other = json.loads(ncclt(*command[:1], "--dry-run", "--json", *command[1:], "99").stdout)
    assert [one["state"] for one in other["stages"][:3]] == ["to do", "to do", "after the recording"]


def test_every_stage_is_a_command_that_exists(ncclt, job):
    plan = json.loads(
        ncclt(
            *("autotune", "--launcher", "torchrun", "--backend", "gloo", "--gpus-per-node", "2"),
            *("--window", "4", "--process-wide", "none", "--dir", "."),
            *STORE,
            "--dry-run",
            "--json",
            "--",
            *job,
        ).stdout
    )
    assert [one["stage"] for one in plan["stages"]] == ["record", "look", "tune", "compare", "use"]
    assert starts(ncclt) == 0
    assert not (ncclt.folder / "ncclt.db").exists(), "nothing is stored"
    words = {one["stage"]: shlex.split(one["command"]) for one in plan["stages"]}
    assert words["tune"][-1].startswith("sqlite:///")
    assert words["tune"][-1].endswith("ncclt.db")
    assert words["tune"][1:-1] == [
        "tune",
        "--model",
        plan["model"],
        *("--gpus-per-node", "2", "--launcher", "torchrun", "--backend", "gloo"),
        *("--process-wide", "none", "--storage"),
    ]
    assert words["compare"][-len(job) :] == words["use"][-len(job) :] == [*job]
    # They are accepted as they stand, by an empty store.
    ncclt("admin", "store", "migrate", *STORE)
    assert f"no workload {plan['model']!r}" in ncclt(*words["tune"][1:], rc=3).stderr
    assert "--cluster" not in ncclt(*words["compare"][1:], rc=3).stderr
    assert ncclt(*words["use"][1:-3], "echo", "ran").stdout == "ran\n"


def test_a_proven_gain_ends_with_the_step_times_of_the_job(ncclt, job, measured):
    first = ncclt("autotune", *measured, "--", *job)
    assert "too few settings tried" in first.stdout
    assert starts(ncclt) == 0
    prove_a_gain(ncclt)

    second = ncclt("autotune", *measured, "--json", "--", *job)
    document = json.loads(second.stdout)
    made = document["verification"]
    assert (document["verdict"], document["reason"]) == (made["verdict"]["decision"], made["verdict"]["reason"])
    assert document["verdict"] != "tuned", "nothing in the job reads the variables"
    assert document["use"] is None
    assert (made["recommendation"], made["warmup"], made["steps"]) == ("proven", 2, 4)
    assert made["tuned_env"]["NCCL_ALGO"]
    compared = starts(ncclt)
    assert compared in (12, 16)

    third = ncclt("autotune", *measured, "--", *job)
    assert "showing the step times of" in third.stderr
    assert f"verdict: {document['verdict']}: {document['reason']}" in third.stdout
    assert "nothing for this job: " in third.stdout
    assert starts(ncclt) == compared


def test_a_job_that_gains_gets_the_one_command_that_uses_it(ncclt, job, measured):
    script = ncclt.folder / "job.py"
    script.write_text(
        'import os\nif "NCCL_ALGO" not in os.environ:\n    os.environ["SLOW"] = "1"\n' + script.read_text()
    )
    ncclt("autotune", *measured, "--", *job)
    prove_a_gain(ncclt)

    done = ncclt("autotune", *measured, "--", *job)
    *_, verdict, use = done.stdout.splitlines()
    assert verdict.startswith("verdict: tuned: training steps are faster: +")
    words = shlex.split(use.removeprefix("Use:      ncclt "))
    assert words[-len(job) :] == [*job]
    started = ncclt(*words[: -len(job)], "env")
    assert "NCCLT_RECOMMENDATION=proven\n" in started.stdout, started.stderr


@pytest.mark.thorough
def test_interrupted_stages_start_again_by_the_same_command(ncclt, job, measured):
    def interrupted(*words, after):
        before = starts(ncclt)
        running = ncclt.start("autotune", *words)
        deadline = time.monotonic() + PATIENT_S
        while starts(ncclt) < before + after and running.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        running.send_signal(signal.SIGINT)
        _out, err = running.communicate(timeout=PATIENT_S)
        assert running.returncode == 130, err
        assert not list(ncclt.folder.glob(".ncclt-*"))
        return err

    gloo = ("--launcher", "torchrun", "--backend", "gloo", "--gpus-per-node", "2", "--warmup", "100000", *STORE)
    assert "nothing is stored yet" in interrupted(*gloo, "--", *job, after=1)
    ncclt("autotune", *measured, "--", *job)
    prove_a_gain(ncclt)
    assert "nothing saved" in interrupted(*measured, "--", *job, after=1)
    with open_store(f"sqlite:///{ncclt.folder / 'ncclt.db'}") as store:
        assert store.records.verifications() == ()
        assert not [workload for workload, shipped in store.workloads.entries() if not shipped]
    before = starts(ncclt)
    assert "launches saved" in interrupted(*measured, "--", *job, after=6)
    with open_store(f"sqlite:///{ncclt.folder / 'ncclt.db'}") as store:
        (kept,) = store.records.verifications()
    assert kept.verdict.decision is Decision.UNDECIDED
    lost = starts(ncclt) - before - len(kept.launches)
    document = json.loads(ncclt("autotune", *measured, "--json", "--", *job).stdout)
    assert document["verification"]["launches"][: len(kept.launches)] == [one.to_document() for one in kept.launches]
    assert len(document["verification"]["launches"]) == starts(ncclt) - before - lost
    assert starts(ncclt) - before - lost in (12, 16)


def test_nothing_to_gain_ends_before_anything_is_launched(ncclt, measured):
    with open_store(f"sqlite:///{ncclt.folder / 'ncclt.db'}") as store:
        hidden = replace(store.workloads.get("nasnetmobile"), name="hidden", step_time_us=1e6, exposed_us=1e4)
        store.workloads.add(hidden, replace=False)
    options = ["hidden" if word == "nasnetmobile" else word for word in measured]

    said = ncclt("autotune", *options).stdout
    assert "Upper bound on savings: 10 ms of 1 s per step (1.0 % is exposed communication)" in said
    assert "verdict: keep-default: nothing to gain: without any exposed communication, steps would be" in said
    document = json.loads(ncclt("autotune", *options, "--json").stdout)
    assert (document["tune"], document["verdict"], document["exposed_share"]) == (None, "keep-default", 0.01)
    assert json.loads(ncclt("studies", "list", *STORE, "--json").stdout)["studies"] == []

    forced = ncclt("autotune", *options, "--force")
    assert "--force: without any exposed communication" in forced.stderr
    assert "Details:  ncclt studies show " in forced.stdout


def test_a_model_of_a_cluster_has_no_job_to_compare(ncclt):
    asked = ("autotune", "--model", "vit-l-32", "--cluster", "mi355x-2x8", "--nodes", "2", *STORE)
    plan = ncclt(*asked, "--dry-run", "--", "torchrun", "train.py").stdout
    assert [line.split()[1] for line in plan.splitlines() if line[0].isdigit()] == ["look", "tune"]
    assert "Step times are not compared" in plan
    done = ncclt(*asked, "--", "torchrun", "train.py").stdout
    assert "demonstration: vit-l-32 on mi355x-2x8 communicates 1.11x faster" in done
    assert "--launcher replay and simulate cannot run a job; run `ncclt autotune -- COMMAND` on 2 x 8 real GPUs" in done


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "give the command of a job after --, or --model NAME"),
        (("--", "true"), "cannot measure here: no GPU or Slurm allocation found"),
        (
            ("--launcher", "simulate", "--cluster", "leonardo", "--", "sh", "-c", "echo no luck; exit 3"),
            "exit code 3\nno luck",
        ),
        (("--model", "nope", "--cluster", "leonardo", "--launcher", "simulate"), "nope"),
        (
            ("--cluster", "lab", "--launcher", "simulate", "--dry-run", "--", "true"),
            "`ncclt cluster detect --name NAME` adds one",
        ),
        (("--launcher", "torchrun", "--", "touch", "ran"), "--cluster is needed to say what is measured"),
        (
            ("--launcher", "torchrun", "--cluster", "leonardo", "--nodes", "2", "--", "touch", "ran"),
            "this machine alone",
        ),
        (
            ("--launcher=local", "--cluster=leonardo", "--nodes=1", "--nccl-tests=/nowhere", "--", "touch", "ran"),
            "cannot find nccl-tests where they would run: cannot start /nowhere/all_reduce_perf",
        ),
    ],
)
def test_what_cannot_begin_says_why(ncclt, words, said):
    ncclt.variables["CUDA_VISIBLE_DEVICES"] = ""
    done = ncclt("autotune", *STORE, *words, rc=None)
    assert done.returncode in (1, 2, 3)
    assert said in done.stderr
    assert done.stdout == ""
    assert not (ncclt.folder / "ran").exists(), "refused before the job is launched"


def test_live_job_without_pytorch_is_undecided_and_keeps_its_exit_code(ncclt):
    plugin = ncclt.folder / "plugin.so"
    plugin.write_bytes(b"never loaded")
    ncclt.variables |= {"NCCLT_PLUGIN": str(plugin), "NCCL_VERSION": "2.28.9"}
    done = ncclt("autotune", "--live", *STORE, "--", sys.executable, "-c", "print('trained'); exit(7)", rc=7)

    assert done.stdout == "trained\n"
    assert "experimental, not yet seen on several GPUs" in done.stderr
    assert "undecided: no NCCL communicator was seen" in done.stderr
    assert "--on-jobs" not in done.stderr
    assert not list(ncclt.folder.glob(".ncclt-*"))
