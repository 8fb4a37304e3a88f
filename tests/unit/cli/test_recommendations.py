"""`ncclt admin recommendations`: states, changes with who and why, and roll-outs, as a user sees them."""

import json
import time
from dataclasses import replace
from functools import partial

import pytest
from typer.testing import CliRunner

from ncclt.cli.env import main as env
from ncclt.cli.recommendations import app
from ncclt.core.revision import Actor, ClusterRules
from ncclt.core.rollout import FIRST_STARTS, Variant
from ncclt.core.ticket import read_ticket
from ncclt.errors import ConflictError, NotFoundError
from ncclt.testing.samples import sample_cluster, sample_recommendation, sample_workload
from ncclt.user_dirs import account_name

SHAPE = ("--cluster", "pair", "--model", "toy", "--nodes", "2", "--gpus-per-node", "4", "--nccl-version", "2.28.9")


@pytest.fixture
def call(command):
    return partial(command.call, app)


def test_a_revision_is_listed_rolled_back_and_its_history_shown(call, command):
    for id in ("a", "b"):
        command.store.revisions.publish(sample_recommendation(id))
    call("activate", "a", "--why", "b hangs on rack 7")
    found = json.loads(call("list", "--json"))["recommendations"]
    assert [(one["id"], one["state"], one["publisher"]) for one in found] == [
        ("b", "retired", account_name()),
        ("a", "active", account_name()),
    ]
    (first, *_) = json.loads(call("show", "a", "--json"))["history"]
    assert (first["action"], first["who"], first["why"]) == ("rolled-back", account_name(), "b hangs on rack 7")
    assert "b hangs on rack 7" in call("show", "a")
    assert "state: active" in call("show", "a")


def test_the_history_names_cluster_and_workload_of_every_change(call, command):
    command.store.workloads.add(sample_workload("mine"))
    command.store.revisions.publish(sample_recommendation("a"))
    lines = [line.split() for line in call("history").splitlines()]
    assert [line[3:6] for line in lines if "workload-added" in line] == [["workload-added", "mine", account_name()]]
    (published,) = [line for line in lines if "published" in line]
    assert published[3:7] == ["published", sample_recommendation("a").cluster, sample_recommendation("a").model, "a"]


def test_who_published_cannot_approve_where_another_person_must(call, command):
    command.store.clusters.add(sample_cluster())
    assert "approval by another person: required" in call("rules", "pair", "--require-approval")
    command.store.revisions.publish(sample_recommendation("a"))
    command.store.revisions.publish(sample_recommendation("b", nodes=1), by=Actor(who="key abc"))
    with pytest.raises(ConflictError, match=f"{account_name()} published the revision a"):
        call("approve", "a")
    call("approve", "b", "--percent", "100")
    assert [one.state for one in command.store.revisions.statuses()] == ["active", "candidate"]
    assert json.loads(call("rules", "pair", "--json"))["require_approval"] is True


@pytest.mark.parametrize(
    ("changes", "label"),
    [
        ({"simulated": False, "launcher": "ssh"}, ""),
        ({"simulated": True}, "SIMULATED"),
        ({"simulated": False, "launcher": "replay"}, "recorded: elsewhere"),
    ],
)
def test_a_revision_is_shown_with_its_verdict_and_where_its_times_come_from(call, command, changes, label):
    made = replace(sample_recommendation("a"), **changes)
    command.store.revisions.publish(made)
    shown, document = call("show", "a"), json.loads(call("show", "a", "--json"))
    assert f"verdict: {'demonstration' if label else 'tuned'}: {made.table.verdict.reason}\n" in shown
    assert (label in shown, "nothing was measured on pair" in shown) == (True, bool(label))
    assert (document["label"], document["verdict"]["speedup"]) == (label, made.table.verdict.speedup)


def test_a_cluster_that_is_not_there_has_no_rules(call):
    with pytest.raises(NotFoundError, match="nope"):
        call("rules", "nope")


def test_rules_keep_what_is_not_named(call, command):
    command.store.clusters.add(sample_cluster())
    call("rules", "pair", "--percent", "20", "--loss-limit", "0.02")
    call("rules", "pair", "--require-verification", "--why", "step times decide here")
    assert command.store.revisions.rules("pair") == ClusterRules(
        cluster="pair", percent=20, loss_limit=0.02, require_verification=True
    )
    assert command.store.revisions.history(cluster="pair")[0].why.endswith(
        "loss limit 2 %, wins need approval: step times decide here"
    )
    assert "wins on step times: await approval" in call("rules", "pair")
    assert "wins on step times: go to all jobs at once" in call("rules", "pair", "--no-approve-wins")
    with pytest.raises(NotFoundError):
        call("rules", "nope", "--percent", "5")


def test_a_pin_is_shown_and_removed(call, command):
    command.store.revisions.publish(sample_recommendation("a"))
    call("pin", "a")
    assert "active, pinned" in call("list")
    call("pin", "a", "--off")
    call("retire", "a")
    assert "retired" in call("list")


@pytest.mark.parametrize("words", [("pin", "a"), ("activate", "b"), ("retire", "a"), ("retire", "b")])
def test_a_change_names_the_roll_out_that_it_ends(command, words):
    command.store.revisions.publish(sample_recommendation("a"))
    command.store.revisions.set_rules(ClusterRules(cluster="pair", percent=50), Actor(who="ann"))
    command.store.revisions.publish(sample_recommendation("b"))
    (rollout,) = command.store.revisions.rollouts()
    done = CliRunner(env={"NCCLT_STORAGE": command.url}).invoke(app, [*words])
    assert f"; this ended the roll-out {rollout.id};" in done.stderr
    assert not command.store.revisions.rollout(rollout.id).is_open


def test_a_roll_out_is_found_and_paused_by_its_revision(call, command):
    command.store.revisions.set_rules(ClusterRules(cluster="pair", percent=50), Actor(who="ann"))
    command.store.revisions.publish(sample_recommendation("a"))
    (rollout,) = command.store.revisions.rollouts()
    assert f"candidate, in roll-out {rollout.id}" in call("list")
    assert json.loads(call("list", "--json"))["recommendations"][0]["rollout"] == rollout.id
    call("pause", "a")
    assert "  a: paused, 0 instead of 50 % of the jobs, " in call("show", "a")
    command.store.revisions.publish(sample_recommendation("b"), for_rollout=True)
    with pytest.raises(ConflictError, match=f"revision a is in the roll-out {rollout.id}, which is paused"):
        call("approve", "b")
    call("pause", "a", "--off")
    assert "  a: running, 50 % of the jobs, " in call("show", "a")
    with pytest.raises(NotFoundError, match="no roll-out 'b'"):
        call("pause", "b")


def test_env_gives_a_job_its_part_of_a_roll_out_and_a_file_none(call, command, capsys, monkeypatch, tmp_path):
    command.store.revisions.publish(sample_recommendation("a"))
    command.store.revisions.set_rules(ClusterRules(cluster="pair", percent=50), Actor(who="ann"))
    command.store.revisions.publish(sample_recommendation("b"))
    (rollout,) = command.store.revisions.rollouts()
    assert "cost 0 of 0 GPU hours\n  b: running, 50 % of the jobs, 0 starts, 0 reports\n" in call("show", "b")
    before = []
    assert "may differ in the last bits: " in call("show", "b")
    assert "may differ in the last bits: " in json.loads(call("show", "b", "--json"))["rollouts"][0]["numerics"]
    for name in ("x1", "x2", "x3", "x4", "x5"):
        monkeypatch.setenv("NCCLT_JOB", name)
        assert env([*SHAPE, "--storage", command.url, "--format", "json"]) == 0
        document = json.loads(capsys.readouterr().out)
        variant = Variant.ACTIVE if rollout.find_arm(f"named {name}") is None else Variant.CANDIDATE
        if before.count("b") == FIRST_STARTS:
            variant = Variant.ACTIVE
        assert (document["variant"], document["rollout"]) == (variant.value, rollout.id)
        assert document["recommendation"] == ("b" if variant is Variant.CANDIDATE else "a")
        before.append(document["recommendation"])
        started = read_ticket(document["ticket"], command.store.ticket_secret(), now_s=time.time())
        assert (started.job, started.recommendation) == (f"named {name}", document["recommendation"])
        assert command.store.revisions.job_starts(rollout.id)[-1].job == f"named {name}"
        file = tmp_path / "env.json"
        assert env([*SHAPE, "--storage", command.url, "--format", "json", "--output", str(file)]) == 0
        kept = json.loads(file.read_text())
        assert (kept["recommendation"], "ticket" in kept) == ("a", False), "it is for later jobs too"
    monkeypatch.delenv("NCCLT_JOB")
    assert env([*SHAPE, "--storage", command.url, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["recommendation"] == "a"


def test_whoever_tunes_learns_that_jobs_do_not_get_the_result(call, command):
    command.store.revisions.publish(sample_recommendation("a"))
    assert command.store.revisions.publication("a") == ""
    command.store.revisions.set_rules(ClusterRules(cluster="pair", require_approval=True), Actor(who="ann"))
    command.store.revisions.publish(sample_recommendation("b"))
    assert "Revision b is a candidate" in command.store.revisions.publication("b")
    call("retire", "b")
    assert "`ncclt admin recommendations activate b`" in command.store.revisions.publication("b")
