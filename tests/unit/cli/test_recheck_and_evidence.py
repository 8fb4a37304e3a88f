"""`ncclt recheck`, `ncclt studies show --evidence` and `ncclt env` over one proof with known times."""

import json
from dataclasses import replace

import pytest
import typer
from typer.testing import CliRunner

from ncclt.cli import env
from ncclt.cli.recheck import recheck
from ncclt.cli.studies import show
from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.message import Collective, Message
from ncclt.core.policy import Policy, Rule
from ncclt.core.recommendation import Decision, PolicyVerdict
from ncclt.core.revision import Actor
from ncclt.core.study import Arm, StudyState
from ncclt.core.workload import MessageCalls, Provenance, Workload
from ncclt.errors import NoRecommendationError
from ncclt.measure.testbed import simulated_testbed
from ncclt.prove.interleave import Proof
from ncclt.prove.proof import judge_arm
from ncclt.testing.fakes import FakeRunner, FakeTrialLog
from ncclt.testing.samples import sample_cluster, sample_recommendation, sample_study

SOURCE = Workload(
    name="mine",
    messages=tuple(
        MessageCalls(
            message=Message(collective=Collective.ALL_REDUCE, dtype="float32", size_bytes=size), calls_per_step=1.0
        )
        for size in (1 << 12, 1 << 14, 1 << 16)
    ),
    provenance=Provenance(source="test"),
)
RING = Policy(rules=(Rule(collective=Collective.ALL_REDUCE, algorithm=Algorithm.RING, protocol=Protocol.SIMPLE),))
SHAPE = ("--nodes", "2", "--gpus-per-node", "4", "--nccl-version", "2.28.9")


@pytest.fixture
def proven(command):
    """A store with the proof of a policy; called tuned, whatever came out, so that there is something to deliver."""
    cluster = sample_cluster()
    workload = SOURCE.placed(nodes=cluster.nodes, gpus_per_node=cluster.gpus_per_node)
    trial_log = FakeTrialLog()
    runner = simulated_testbed(cluster, seed=7, reason="test").runner
    arms = {Arm.DEFAULT: Policy(), Arm.TABLE: RING}
    hooks = {"interrupted": lambda: False, "watch": lambda *_: None}
    Proof(runner=runner, workload=workload, trial_log=trial_log, policies=arms, blocks=6, **hooks).run()
    verdict = judge_arm(Arm.TABLE, RING, trial_log.trials(), workload, min_effect=0.02)
    study = replace(
        sample_study("s"), cluster=cluster, workload=workload, process_wide=(), seed=7, state=StudyState.DONE
    )
    found = replace(
        sample_recommendation("r1", cluster=cluster.name, model="mine"),
        workload_digest=workload.digest(),
        collectives=workload.collectives,
        fingerprint=cluster.fingerprint(),
        table=PolicyVerdict(policy=RING, verdict=verdict),
        created="2026-01-01T00:00:00",
        source_digest=SOURCE.digest(),
    )
    store = command.store
    store.clusters.add(cluster)
    store.workloads.add(SOURCE)
    store.studies.open(study)
    for trial in trial_log.trials():
        store.trials.add(study.id, trial)
    store.revisions.publish(found)
    called = replace(found, id="r2", table=replace(found.table, verdict=replace(verdict, decision=Decision.TUNED)))
    store.revisions.publish(called)
    return command


def run_recheck(command, *words):
    app = typer.Typer()
    app.command()(recheck)
    cluster = sample_cluster()
    options = ["--model", "mine", "--cluster", cluster.name, "--nodes", str(cluster.nodes), "--points", "3"]
    options += ["--launcher", "simulate", *words]
    return CliRunner(env={"NCCLT_STORAGE": command.url}).invoke(app, options, catch_exceptions=False)


def test_a_healthy_one_is_fresh_and_the_check_is_kept(proven):
    done = run_recheck(proven, "--json")

    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert (document["freshness"], document["recommendation"], document["launches"]) == ("fresh", "r2", 8)
    assert proven.store.records.rechecks("r2")[0].to_document() == document


def test_another_nccl_stops_the_serving_until_a_check_passes(proven):
    moved = replace(sample_cluster(), nccl_version="2.30.7")
    proven.store.clusters.add(moved, replace=True)

    done = run_recheck(proven)
    assert done.exit_code == 4
    assert "stale" in done.stdout
    assert "2.30.7" in done.stdout

    asked = ["--cluster", moved.name, "--model", "mine", *SHAPE, "--storage", proven.url, "--format", "tuner-csv"]
    assert env.main(asked) == 3

    proven.store.clusters.add(sample_cluster(), replace=True)
    assert run_recheck(proven, "--quiet").exit_code == 0
    assert env.main(asked) == 0


def test_what_was_measured_with_the_nccl_that_is_here_is_checked_first(proven):
    """A newer study of another NCCL is not what this cluster serves."""
    found = proven.store.recommendations.get("r2")
    other = replace(found.fingerprint, nccl_version="2.32.9")
    proven.store.revisions.publish(replace(found, id="r9", fingerprint=other, created="2027-01-01T00:00:00"))

    assert json.loads(run_recheck(proven, "--json").stdout)["recommendation"] == "r2"


def test_nothing_published_is_nothing_to_recheck(command):
    command.store.clusters.add(sample_cluster())
    command.store.workloads.add(SOURCE)

    with pytest.raises(NoRecommendationError):
        run_recheck(command)


def test_evidence_is_judged_again_from_the_trials(proven):
    document = json.loads(proven(show, "abc123", "--evidence", "--json"))

    (arm,) = document["arms"]
    assert (document["recommendation"], arm["arm"]) == ("r2", "table")
    assert arm["same"] is False, "r2 claims more than its launches prove"
    assert len(arm["blocks"]) == arm["recomputed"]["blocks"]
    assert arm["blocks"][-1]["decision"] == arm["recomputed"]["decision"]
    text = proven(show, "abc123", "--evidence")
    assert "recomputed: DIFFERENT" in text

    honest = replace(proven.store.recommendations.get("r1"), id="r3")
    proven.store.revisions.publish(honest)
    assert "recomputed: same" in proven(show, "abc123", "--evidence")


def test_an_undecided_one_serves_nothing_and_says_why(proven, capsys):
    found = proven.store.recommendations.get("r1")
    verdict = replace(found.table.verdict, decision=Decision.UNDECIDED, reason="no gain is proven and none refuted")
    proven.store.revisions.publish(replace(found, id="r4", table=replace(found.table, verdict=verdict)))
    proven.store.revisions.approve("r4", Actor(who="ann"))

    for format in ("export", "tuner-csv", "json"):
        names = ("--cluster", found.cluster, "--model", "mine", *SHAPE)
        code = env.main([*names, "--storage", proven.url, "--format", format])
        printed = capsys.readouterr()
        assert (code, printed.out) == (3, "")
        assert "is undecided: no gain is proven" in printed.err


def test_what_variables_deliver_is_checked_by_variables_alone(proven, monkeypatch):
    """The table is undecided and served to nobody: that it cannot be forced here is no matter, nor who could."""
    served = proven.store.recommendations.get("r2")
    undecided = replace(served.table.verdict, decision=Decision.UNDECIDED, reason="no gain is proven")
    proven.store.revisions.publish(
        replace(served, id="r5", table=replace(served.table, verdict=undecided), variables=served.table)
    )
    proven.store.revisions.approve("r5", Actor(who="ann"))
    for trial in proven.store.trials.find("abc123"):
        if trial.arm is Arm.TABLE:
            arm = replace(trial, arm=Arm.VARIABLES, number=trial.number + 1000)
            proven.store.trials.add("abc123", arm)
    by_variables = []

    def testbed(cluster, **options):
        made = simulated_testbed(cluster, **options)
        by_variables.append(FakeRunner(cluster, lambda *_: 10.0))
        return replace(made, by_variables=by_variables[0])

    monkeypatch.setattr("ncclt.measure.open_testbed.simulated_testbed", testbed)
    run_recheck(proven, "--quiet")
    (runner,) = by_variables
    assert len(runner.launches) == 8
