"""`ncclt run --shared` on many nodes at once: all of a job's processes are given the same, or do not start."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import run_job
from program import run_program

from ncclt.deliver.job_info import JobInfo, name_job
from ncclt.deliver.shared_decision import await_participants
from ncclt.errors import StoreError, UsageError

store, serving, SHOW = run_job.store, run_job.serving, run_job.SHOW

AWAY = "http://127.0.0.1:9"
PATIENT_S = 180


@pytest.fixture
def shared(tmp_path):
    (tmp_path / "shared").mkdir()
    return tmp_path / "shared"


def step(rank, *, job=7, restarts=0, tasks=8):
    """The variables of one task of a step of Slurm over two nodes."""
    return {
        "SLURM_JOB_ID": job,
        "SLURM_STEP_ID": 0,
        "SLURM_STEP_NUM_NODES": 2,
        "SLURM_STEP_NUM_TASKS": tasks,
        "SLURM_PROCID": rank,
        "SLURM_RESTART_COUNT": restarts,
        "SLURM_NODEID": rank * 2 // tasks,
    }


def show_other_node(shared, environ, command, options):
    """Show another node of the same job in the folder, as its own process would."""
    named = options[options.index("--job") + 1] if "--job" in options else environ.get("NCCLT_JOB")
    with contextlib.suppress(UsageError, StoreError):
        name, _is_unique = name_job({key: str(value) for key, value in environ.items()}, command, named=named)
        await_participants(shared, JobInfo(name=name), name="another node", count=2, wait_s=0)


def started(tmp_path, shared, server, variables, *options, command=SHOW, others=True):
    """Start one process of a job, on a node with a cache of its own."""
    if others:
        show_other_node(shared, variables, command, options)
    node = tmp_path / f"node{variables.get('SLURM_PROCID', 0)}"
    where = ["--cluster", "leonardo", "--model", "bert", *run_job.SHAPE[2:], "--server", server]
    return subprocess.Popen(
        [*run_job.NCCLT, "run", *where, "--shared", str(shared), "--timeout", "30", *options, "--", *command],
        env=run_job.job_environ(node, **{"SLURM_JOB_NUM_NODES": 2, **variables}),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process):
    out, err = process.communicate(timeout=PATIENT_S)
    return process.returncode, json.loads(out) if out else None, err


def given(environ):
    own = ("NCCLT_PLUGIN", "NCCLT_ALLOW")
    return {name: value for name, value in environ.items() if name.startswith("NCCL") and name not in own}


def test_an_outage_on_some_nodes_does_not_divide_the_job(tmp_path, shared, serving):
    """Half of the processes cannot reach the server; all are given what the others got."""
    url, _stop = serving
    running = [started(tmp_path, shared, url if rank % 2 else AWAY, step(rank), "--wait", "120") for rank in range(8)]
    results = [ended(process) for process in running]

    assert [code for code, _env, _err in results] == [0] * 8, [err for _code, _env, err in results]
    told = [given(environ) for _code, environ, _err in results]
    assert told == [told[0]] * 8
    assert told[0]["NCCLT_RECOMMENDATION"] == "0c0ffee1"
    assert sum("following the decision of" in err for _code, _env, err in results) == 7


def test_an_outage_for_all_leaves_all_with_the_default_even_when_it_ends(tmp_path, shared, serving):
    url, _stop = serving
    first = ended(started(tmp_path, shared, AWAY, step(0), "--wait", "0.1"))
    late = ended(started(tmp_path, shared, url, step(1)))
    requeued = ended(started(tmp_path, shared, url, step(0, restarts=1)))

    assert (given(first[1]), given(late[1])) == ({}, {})
    why = late[2].partition("Nothing set: decided so for this job (")[2].rpartition(")")[0]
    assert why, late[2]
    assert first[2].count(why) == 1
    assert given(requeued[1])["NCCLT_RECOMMENDATION"] == "0c0ffee1"


def test_a_process_killed_while_it_decides_stops_nobody(tmp_path, shared, serving):
    """It has asked a server that never answers, and is killed with -9."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        stuck = started(tmp_path, shared, f"http://127.0.0.1:{silent.getsockname()[1]}", step(0))
        silent.settimeout(PATIENT_S)
        connection, _address = silent.accept()
        stuck.send_signal(signal.SIGKILL)
        assert ended(stuck)[0] == -signal.SIGKILL
        connection.close()
    code, environ, _err = ended(started(tmp_path, shared, serving[0], step(1)))

    assert (code, given(environ)["NCCLT_RECOMMENDATION"]) == (0, "0c0ffee1")


def test_a_node_without_the_folder_does_not_start(tmp_path, serving):
    code, environ, err = ended(started(tmp_path, tmp_path / "not-mounted", serving[0], step(0)))

    assert (code, environ) == (69, None)
    assert "is not on" in err
    assert not (tmp_path / "not-mounted").exists()


def test_own_variables_on_one_node_alone_do_not_start(tmp_path, shared, serving):
    assert ended(started(tmp_path, shared, serving[0], step(0)))[0] == 0
    code, environ, err = ended(started(tmp_path, shared, serving[0], step(1) | {"NCCL_PROTO": "LL"}))

    assert (code, environ) == (2, None)
    assert "NCCL_PROTO is LL here" in err


def test_the_table_is_used_by_all_or_none(tmp_path, shared, serving, library):
    plugin = {"NCCLT_PLUGIN": library}
    with_table = ended(started(tmp_path, shared, serving[0], step(0) | plugin))
    lacking = ended(started(tmp_path, shared, serving[0], step(1)))
    following = ended(started(tmp_path, shared, AWAY, step(2) | plugin, "--fallback", "fail"))

    table = given(with_table[1])["NCCLT_TABLE"]
    assert Path(with_table[1]["PYTHONPATH"].partition(":")[0]).parent == shared
    assert given(following[1])["NCCLT_TABLE"] == table
    assert lacking[0] == 2
    assert "NCCLT_TABLE is unset here" in lacking[2]
    # Where the first one had no plugin, those that have one do without.
    first = ended(started(tmp_path, shared, serving[0], step(0, job=8)))
    second = ended(started(tmp_path, shared, serving[0], step(1, job=8) | plugin))
    assert given(first[1]) == given(second[1])
    assert "NCCL_ALGO" in given(second[1])


def test_fallback_fail_starts_nothing_and_decides_nothing(tmp_path, shared):
    code, environ, _err = ended(started(tmp_path, shared, AWAY, step(0), "--fallback", "fail", "--wait", "0.1"))

    assert (code, environ, list(shared.glob("ncclt-decision-*"))) == (69, None, [])


def test_torchrun_on_many_nodes_needs_a_name(tmp_path, shared, serving):
    """The command is a stand-in that has torchrun's name."""
    torchrun = tmp_path / "torchrun"
    torchrun.write_text(f"#!{sys.executable}\n{SHOW[2]}\n")
    torchrun.chmod(0o755)
    nameless = ended(started(tmp_path, shared, serving[0], {}, command=[str(torchrun), "--nnodes=2", "train.py"]))
    named = [str(torchrun), "--nnodes=2", "--rdzv-id=bert-1", "train.py"]
    follower = ended(started(tmp_path, shared, serving[0], {}, command=named))

    assert nameless[:2] == (2, None)
    assert "--job NAME" in nameless[2]
    assert given(follower[1])["NCCLT_RECOMMENDATION"] == "0c0ffee1"
    assert len(list(shared.glob("ncclt-decision-*"))) == 1


def test_a_folder_that_is_another_one_on_each_node_gives_nothing_to_either(tmp_path, serving):
    """Each node has a folder of that name, and would otherwise decide alone: a table on some ranks only."""
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
    running = [
        started(tmp_path, folder, serving[0], step(rank), "--wait", "2", others=False)
        for rank, folder in zip((0, 4), folders, strict=True)
    ]
    for (code, environ, err), folder in zip(map(ended, running), folders, strict=True):
        assert (code, given(environ)) == (0, {})
        assert f"only 1 of 2 nodes were seen in {folder}" in err


def test_nodes_that_see_each_other_in_the_folder_are_given_the_same(tmp_path, shared, serving):
    running = [started(tmp_path, shared, serving[0], step(rank), others=False) for rank in (0, 4)]
    results = [ended(process) for process in running]
    assert given(results[0][1]) == given(results[1][1]), [err for *_, err in results]
    assert given(results[0][1])["NCCLT_RECOMMENDATION"] == "0c0ffee1"


def test_a_late_node_follows_a_decision_for_nothing(tmp_path, shared, serving):
    first = ended(started(tmp_path, shared, serving[0], step(0), "--wait", "0.1", others=False))
    late = ended(started(tmp_path, shared, serving[0], step(4), others=False))
    assert (given(first[1]), given(late[1])) == ({}, {})


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a folder of another user")
def test_a_folder_that_another_user_can_change_is_not_used(tmp_path, shared, serving, library):
    """Somebody could swap the plugin after it was checked, and run as the job's user."""
    for mode, owner in ((0o777, 0), (0o1777, 4711), (0o755, 4711)):
        shared.chmod(mode)
        os.chown(shared, owner, owner)
        code, environ, err = ended(started(tmp_path, shared, serving[0], step(0) | {"NCCLT_PLUGIN": library}))
        assert (code, environ) == (69, None)
        assert "other users can write" in err or "belongs to user 4711" in err


def test_without_an_agreement_each_node_gets_nothing_and_is_told_how(tmp_path, store):
    torchrun = [run_job.stand_in(tmp_path, "torchrun"), "--nnodes=2", "train.py"]
    done = run_job.run_bert(tmp_path, ("--storage", store.url), torchrun)
    unknown = run_job.run_bert(tmp_path, ("--storage", store.url), ["sh", "-c", "env"], SLURM_JOB_ID="")

    assert (done.returncode, given(json.loads(done.stdout))) == (0, {})
    assert "NCCLT_RECOMMENDATION" not in unknown.stdout
    for err in (done.stderr, unknown.stderr):
        assert all(way in err for way in ("--shared FOLDER", "srun or mpirun", "--policy FILE", "--job NAME"))


def test_one_process_does_not_make_a_missing_folder_either(tmp_path, serving, library):
    """mpirun would start the other ranks, and the table would be where they do not look."""
    away = tmp_path / "not-mounted"
    code, environ, err = ended(started(tmp_path, away, serving[0], {"NCCLT_PLUGIN": library}))
    strict = ended(started(tmp_path, away, serving[0], {"NCCLT_PLUGIN": library}, "--fallback", "fail"))

    assert (code, given(environ)) == (0, {})
    assert f"the shared folder {away} is not on" in err
    assert strict[:2] == (69, None)
    assert not away.exists()


def test_the_variable_names_the_folder_too(tmp_path, shared, store):
    more = {name: str(value) for name, value in step(0).items()} | {"NCCLT_SHARED": str(shared)}
    show_other_node(shared, more, SHOW, ())
    done = run_job.run_bert(tmp_path, ("--storage", store.url), SHOW, **more)

    assert done.returncode == 0, done.stderr
    assert len(list(shared.glob("ncclt-decision-*"))) == 1


def test_a_job_with_a_name_of_its_own_may_run_beside_another_in_one_step(tmp_path, shared, serving):
    assert ended(started(tmp_path, shared, serving[0], step(0)))[0] == 0
    refused = ended(started(tmp_path, shared, serving[0], step(0), "--nodes", "2"))
    beside = ended(started(tmp_path, shared, serving[0], step(0), "--nodes", "2", "--job", "second"))

    assert refused[0] == 2
    rest = "gpus per node 4, nccl version 2.28.9"
    assert f"asked for bert on leonardo, {rest}, and this process for bert on leonardo, nodes 2, {rest}" in refused[2]
    assert beside[0] == 0


def test_tasks_of_a_real_slurm_decide_once_per_step(tmp_path, shared, serving, slurm_cluster):
    """Four tasks on two nodes, of which two cannot reach the server; then a second step of the same job."""
    # Little text: Slurm may tear long lines of tasks apart.
    show = tmp_path / "show.py"
    show.write_text(
        "import os; print({n: v for n, v in sorted(os.environ.items()) if n.startswith('NCCL')}, flush=True)"
    )
    choose = f'[ "$SLURM_NODEID" = 0 ] && url={AWAY} || url={serving[0]}; exec "$@" --server $url -- {SHOW[0]} {show}'
    where = ["--cluster", "leonardo", "--model", "bert", *run_job.SHAPE[2:], "--shared", str(shared)]
    where += ["--timeout", "30", "--wait", "120", "--allow", "simulated", "--allow-difference", "NO_GPU"]
    with slurm_cluster.allocation() as environment:
        clean = {name: value for name, value in environment.items() if not name.startswith("NCCL")}
        for steps in (1, 2):
            done = run_program(
                ["srun", "-N2", "--ntasks-per-node=2", "sh", "-c", choose, "sh", *run_job.NCCLT, "run", *where],
                env=clean | {"XDG_CACHE_HOME": str(tmp_path / "cache")},
                cwd=tmp_path,
            )
            assert done.returncode == 0, done.stderr
            told = done.stdout.splitlines()
            assert told == [told[0]] * 4
            assert "'NCCLT_RECOMMENDATION': '0c0ffee1'" in told[0], done.stderr
            assert len(list(shared.glob("ncclt-decision-*"))) == steps


def ask_service(tmp_path, server, node, *options, command, **more):
    """Run one node of a job that relies on the server run_job."""
    where = ["--cluster", "leonardo", "--model", "bert", *run_job.SHAPE[2:], "--server", server, "--job", "night-1"]
    where += ["--timeout", "30", "--no-plugin"]
    done = run_program(
        [*run_job.NCCLT, "run", *where, *options, "--", command, "--nnodes=2", "train.py"],
        env=run_job.job_environ(tmp_path / node, **more),
        cwd=tmp_path,
    )
    return done.returncode, given(json.loads(done.stdout)) if done.stdout else None, done.stderr


def test_a_server_keeps_the_decision_of_a_named_job(tmp_path, serving, store):
    """Something else is published between two nodes; a third one cannot reach the server."""
    torchrun = run_job.stand_in(tmp_path, "torchrun")
    first = ask_service(tmp_path, serving[0], "n0", command=torchrun)
    store.revisions.publish(replace(store.recommendations.get("0c0ffee1"), id="0c0ffee2"))
    second = ask_service(tmp_path, serving[0], "n1", command=torchrun)
    away = ask_service(tmp_path, AWAY, "n0", command=torchrun)

    assert first[1]["NCCLT_RECOMMENDATION"] == "0c0ffee1"
    assert (first[0], second[:2]) == (0, first[:2])
    assert (away[0], away[1]) == (69, None)
    assert "other nodes of this job may have an answer" in away[2]


def test_a_server_keeps_nothing_for_a_named_job_as_well(tmp_path, serving, store):
    torchrun = run_job.stand_in(tmp_path, "torchrun")
    options = ("--driver", "1.2.3")
    first = ask_service(tmp_path, serving[0], "n0", *options, command=torchrun)
    second = ask_service(tmp_path, serving[0], "n1", *options, command=torchrun)
    another = ask_service(tmp_path, serving[0], "n1", command=torchrun)
    contradicting = ask_service(tmp_path, serving[0], "n1", "--nodes", "4", command=torchrun)

    assert (first[:2], second[:2]) == ((0, {}), (0, {}))
    assert "Nothing set" in second[2]
    assert (another[0], "another node of the job named night-1 asked for" in another[2]) == (69, True)
    assert (contradicting[0], "--nodes 4 contradicts the job" in contradicting[2]) == (69, True)
