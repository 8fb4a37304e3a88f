"""`ncclt run` and the servers that it is told of: none stops a job, and none is taken from a file of somebody else."""

import os
from pathlib import Path

import hostile_server
import pytest
import run_job
from run_job import AWAY, NAMES

nursery, run = run_job.nursery, run_job.run


def test_a_bad_answer_is_decided_against_by_the_whole_job(tmp_path, run):
    """With --shared: what a server says wrong must not be what keeps a job from starting."""
    (tmp_path / "shared").mkdir()
    task = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NUM_TASKS": "2"}
    with hostile_server.hostile("a value is a list") as server:
        words = ["--server", server.url, "--shared", "shared", "--wait", "0", "--timeout", "60"]
        for rank in "01":
            environ = run_job.job_environ(tmp_path, **task, SLURM_PROCID=rank)
            done, _given = run(*NAMES, *words, environ=environ)
            assert (done.returncode, b"NCCL_" in done.stdout) == (0, False), done.stderr
    assert len(list((tmp_path / "shared").glob("ncclt-decision-*"))) == 1


def test_variables_and_table_come_by_one_request(tmp_path, monkeypatch):
    """Two requests could be answered by two revisions, and each would need a part of the time."""
    from ncclt.client import fetch as client
    from ncclt.core.recommendation import Request
    from ncclt.deliver import answer

    asked = []

    def fetch_env(_server, *, format, timeout_s, **_more):
        asked.append((format, timeout_s))
        return client.Reply((Path(__file__).parents[1] / "golden" / "env" / "tuned.json").read_text(), "server")

    monkeypatch.setattr(client, "fetch_env", fetch_env)
    request = Request(cluster="leonardo", model="bert")
    source = answer.AnswerSource(server=AWAY, timeout_s=0.5)
    found = answer.request_answer(request, source, from_cache=False, warn=print)
    assert asked == [("json", 0.5)]
    assert (found.table.count("\nallreduce,"), found.variables[0][0]) == (3, "NCCL_ALGO")


def test_a_server_named_by_a_file_is_said_and_taken_from_our_own_alone(tmp_path, run, nursery):
    """Whoever can write to the working folder would else decide what a job runs with."""
    project = tmp_path / "ncclt.toml"
    project.write_text(f"server = '{AWAY}'\n")
    env = ["env", *NAMES, "--format"]
    for mode, taken in ((0o644, True), (0o664, False), (0o646, False)):
        project.chmod(mode)
        done, _given = run(*NAMES)
        assert done.returncode == 0
        assert (b"127.0.0.1:9" in done.stderr) == taken
        assert (f"is named by {project}" if taken else "server is not taken from") in done.stderr.decode()
        for words in ([*env, "export"], [*env, "slurm-taskprolog"]):
            code, out, err = nursery(words, run_job.job_environ(tmp_path), tmp_path)
            assert (code, out) == (69 if taken else 2, "")
            assert (f"is named by {project}" if taken else "chmod go-w") in err


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a file of another user")
def test_a_store_named_by_another_users_file_is_refused_where_it_is_needed(tmp_path, run, nursery):
    project = tmp_path / "ncclt.toml"
    project.write_text("storage = 'sqlite:////nowhere/else.db'\ncluster = 'leonardo'\n")
    os.chown(project, 4711, 4711)

    def call(*words):
        return nursery(words, run_job.job_environ(tmp_path), tmp_path)

    code, _out, err = call("studies", "list")
    assert (code, "it belongs to user 4711" in err) == (2, True)
    assert call("studies", "list", "--storage", f"sqlite:///{tmp_path}/own.db")[0] != 2
    assert "not taken" in call("config", "show", "--json")[1]
    done, _given = run("--model", "bert")
    assert (done.returncode, b"it belongs to user 4711" in done.stderr) == (0, True)
