"""`ncclt run` around real processes: a job that plays NCCL's part, the compiled plugin, a server on loopback."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import run_job
from program import run_program
from run_job import NAMES, NCCLT, SHAPE, SHOW, job_environ, run_bert, stand_in

store, serving = run_job.store, run_job.serving
# A job of one rank that asks the plugin as NCCL would, for sizes of the policy and one that it does not speak of.
JOB = """
import os, sys
from pathlib import Path
from ncclt.nccl.tuner_plugin.loaded import LoadedPlugin
plugin = LoadedPlugin(Path(os.environ["NCCL_TUNER_PLUGIN"]))
with plugin.communicator(api=5, ranks=8, nodes=2) as communicator:
    for size in (4096, 4096, 1 << 26):
        communicator.ask(4, size)
    communicator.ask(0, 64)
sys.exit(7)
"""
LOG = """
import os, sys
path = os.environ["NCCL_DEBUG_FILE"].replace("%h", "n1").replace("%p", "40")
said = [f"{name} set by environment to {os.environ[name]}" for name in sorted(os.environ) if name.startswith("NCCL_")]
said += ["comm 0xaa rank 0 nranks 8 cudaDev 0 busId 1 commId 0x1 - Init COMPLETE"]
said += ["AllReduce: 4096 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..1}"] * 3
open(path, "w").write("".join(f"n1:40:41 [0] NCCL INFO {line}\\n" for line in said))
"""


def test_a_job_asks_the_plugin_and_the_attestation_is_stored(tmp_path, store, library):
    where = ("--storage", store.url, "--policy-dir", tmp_path / "shared", "--report", tmp_path / "reports")
    done = run_bert(tmp_path, where, [sys.executable, "-c", JOB], NCCLT_PLUGIN=library, NCCLT_AGREEMENT="none")

    assert (done.returncode, done.stdout) == (7, "")
    assert "took effect: 3 of 3 calls with a rule used its choice" in done.stderr
    (kept,) = store.records.attestations(["0c0ffee1"])
    assert (kept.effect.value, kept.calls_as_wanted, kept.calls_unruled) == ("took-effect", 3, 1)
    # The same files by hand: the same finding, kept once.
    (folder,) = (tmp_path / "reports").iterdir()
    again = run_program(
        [*NCCLT, "attest", *folder.iterdir(), "--storage", store.url, "--json"], env=job_environ(tmp_path)
    )
    assert (again.returncode, json.loads(again.stdout)["id"]) == (0, kept.id), again.stderr
    assert "already in" in again.stderr
    assert len(store.records.attestations(["0c0ffee1"])) == 1


def test_variables_from_a_server_are_attested_by_the_log_and_posted(tmp_path, store, serving):
    url, stop = serving
    options = ("--server", url, "--no-plugin", "--timeout", "30")
    done = run_bert(tmp_path, (*options, "--report", tmp_path / "reports"), [sys.executable, "-c", LOG])

    assert done.returncode == 0
    assert f"posted to {url}" in done.stderr, done.stderr
    (kept,) = store.records.attestations(["0c0ffee1"])
    assert (kept.form.value, kept.effect.value, kept.calls_as_wanted) == ("variables", "took-effect", 3)
    stop()
    shown = run_bert(tmp_path, options, SHOW)
    assert "from the cache" in shown.stderr
    assert json.loads(shown.stdout)["NCCLT_RECOMMENDATION"] == "0c0ffee1"


def test_a_job_gets_what_was_measured_with_the_variables_of_its_site(tmp_path, store, serving):
    first = store.recommendations.get("0c0ffee1")
    measured = replace(first.fingerprint, site_variables=(("NCCL_IB_TC", "41"),))
    store.revisions.publish(replace(first, id="0c0ffee2", fingerprint=measured))
    for where in (("--storage", store.url), ("--server", serving[0], "--timeout", "30")):
        for variables, expected in (({"NCCL_IB_TC": 41}, "0c0ffee2"), ({}, "0c0ffee1")):
            done = run_bert(tmp_path, (*where, "--no-plugin"), SHOW, **variables)
            assert json.loads(done.stdout)["NCCLT_RECOMMENDATION"] == expected, done.stderr


def test_nodes_whose_interfaces_differ_get_the_same_answer(tmp_path, store):
    """Each decides for itself, and both sets were tuned: two answers would hang the job."""
    first = store.recommendations.get("0c0ffee1")
    for number, interface in (("2", "eth0"), ("3", "ib0")):
        site = (("NCCL_IB_TC", "41"), ("NCCL_SOCKET_IFNAME", interface))
        measured = replace(first.fingerprint, site_variables=site)
        store.revisions.publish(replace(first, id=f"0c0ffee{number}", fingerprint=measured))
    store.revisions.publish(replace(first, id="0c0ffee4"))
    words = ("env", "--storage", store.url, *NAMES, "--format", "json")
    for interface in ("eth0", "ib0", "enp1"):
        node = {"OMPI_COMM_WORLD_RANK": 0, "NCCL_IB_TC": 41, "NCCL_SOCKET_IFNAME": interface}
        done = subprocess.run(
            [*NCCLT, *words], env=job_environ(tmp_path, **node), capture_output=True, text=True, timeout=120, check=True
        )
        assert json.loads(done.stdout)["recommendation"] == "0c0ffee3"


def test_an_outage_never_stops_the_training_unless_asked_to(tmp_path):
    options = ("--server", "http://127.0.0.1:9")
    done = run_bert(tmp_path, options, SHOW)
    assert done.returncode == 0
    assert "nothing set" in done.stderr
    assert [name for name in json.loads(done.stdout) if name.startswith("NCCL")] == ["NCCLT_ALLOW"]
    refused = run_bert(tmp_path, (*options, "--fallback", "fail"), SHOW)
    assert (refused.returncode, refused.stdout) == (69, "")


def test_without_report_the_command_takes_our_place(tmp_path, store):
    """Same process, so the same signals and the same end; and the signals of a fresh one."""
    code = "import os, signal as s; print(os.getpid(), s.getsignal(s.SIGPIPE), flush=True); os.kill(os.getpid(), 15)"
    child = subprocess.Popen(
        [*NCCLT, "run", *NAMES, "--storage", store.url, "--", sys.executable, "-c", code],
        env=job_environ(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with child:
        said = child.stdout.read()
    assert child.returncode == -signal.SIGTERM
    assert said.split()[0] == str(child.pid)


@pytest.mark.parametrize("reports", [False, True])
@pytest.mark.parametrize(("command", "code"), [(["./is-not-here"], 127), (["/etc"], 126)])
def test_a_command_that_cannot_be_started_ends_as_in_a_shell(tmp_path, store, command, code, reports):
    report = ("--no-plugin", "--report", tmp_path / "reports") if reports else ()
    done = run_bert(tmp_path, ("--storage", store.url, *report), command)
    assert done.returncode == code
    assert f"cannot start {command[0]}" in done.stderr


@pytest.mark.parametrize("reports", [False, True])
def test_a_script_that_names_no_interpreter_runs_as_in_a_shell(tmp_path, store, reports):
    """The system refuses it (ENOEXEC); shells, `env` and execvp(3) give it to sh."""
    script = tmp_path / "bin" / "train"
    script.parent.mkdir()
    script.write_text('echo "$0 $1"; exit 5\n')
    script.chmod(0o755)
    where = ("--storage", store.url, *(("--no-plugin", "--report", tmp_path / "reports") if reports else ()))
    for command in (str(script), "train"):
        done = run_bert(tmp_path, where, [command, "-x"], PATH=f"{script.parent}{os.pathsep}{os.environ['PATH']}")
        assert (done.returncode, done.stdout) == (5, f"{script} -x\n"), done.stderr


@pytest.mark.parametrize(
    "options",
    [
        ("--nodes", "0"),
        ("--policy", "t", "--no-plugin"),
        ("--shared", ""),
        ("--report", ""),
    ],
)
def test_a_mistyped_option_is_told_before_anything_starts(tmp_path, options):
    done = run_bert(tmp_path, options, SHOW)
    assert (done.returncode, done.stdout) == (2, "")


def test_a_table_from_a_file_is_used_and_what_differs_is_said(tmp_path, library):
    table = Path(__file__).parents[1] / "golden" / "env" / "tuned.tuner-csv"
    words = ["torchrun", "--nnodes=4", "--nproc-per-node=4", "train.py"]
    said = (
        "the table was measured with 2 nodes, 8 ranks, and this job has 4 nodes, 16 ranks; not validated for this job"
    )
    for options in (("--nodes", "4"), ()):
        done = run_bert(tmp_path, ("--policy", table, "--dry-run", *options), words, NCCLT_PLUGIN=library)
        assert done.returncode == 0
        assert said in done.stderr
        assert "NCCLT_TABLE=1:r-1f3c:" in done.stderr
        assert "NCCLT_SIMULATED=1" in done.stderr
        assert "Same bits as the NCCL default: unknown" in done.stderr, "the file does not say"


@pytest.mark.parametrize("command", [[], ["", "x"]])
def test_no_command_is_told(tmp_path, command):
    """An empty word is what `"$TRAIN"` is where the variable is not set."""
    done = run_bert(tmp_path, ("--fallback", "cached"), command)
    assert (done.returncode, done.stderr.splitlines()[0]) == (2, "ncclt: no command to run")


def test_a_job_that_removes_its_reports_keeps_its_exit_code(tmp_path, store, library):
    reports = tmp_path / "reports"
    command = ["sh", "-c", 'cd "$NCCLT_PLUGIN_REPORT" && rm -rf "$NCCLT_PLUGIN_REPORT"; exit 7']
    done = run_bert(
        tmp_path,
        ("--storage", store.url, "--policy-dir", tmp_path / "shared", "--report", reports),
        command,
        NCCLT_PLUGIN=library,
    )
    assert done.returncode == 7, done.stderr
    assert "the folder of the reports is gone" in done.stderr


def test_nccl_finds_a_log_folder_with_a_percent_sign(tmp_path, store):
    """In NCCL_DEBUG_FILE it begins what NCCL replaces, and two are one."""
    done = run_bert(tmp_path, ("--storage", store.url, "--no-plugin", "--report", tmp_path / "50%h"), SHOW)
    file = json.loads(done.stdout)["NCCL_DEBUG_FILE"]
    assert "/50%%h/" in file
    assert file.endswith("/nccl.%h.%p.log")
    assert Path(file.removesuffix("/nccl.%h.%p.log").replace("%%", "%")).is_dir()


def test_who_starts_other_nodes_puts_the_plugin_where_they_read_the_table(tmp_path, store, library):
    """Else a node that has the table and no plugin would choose otherwise than the rest."""
    shared = tmp_path / "shared"
    for command in (["srun"], ["time", "mpirun"]):
        words = [*command[:-1], stand_in(tmp_path, command[-1])]
        done = run_bert(
            tmp_path,
            ("--storage", store.url, "--policy-dir", shared),
            words,
            NCCLT_PLUGIN=library,
            PATH=f"{stand_in(tmp_path, 'time').rpartition('/')[0]}:{os.environ['PATH']}",
        )
        given = json.loads(done.stdout)
        placed = Path(given["NCCL_TUNER_PLUGIN"])
        assert placed.is_relative_to(shared), done.stderr
        assert (placed.name, placed.read_bytes()) == ("libnccl-tuner-ncclt.so", library.read_bytes())
        assert Path(given["PYTHONPATH"].partition(":")[0]).parent == shared


def env(tmp_path, *options, **more):
    words = ["env", "--cluster", "leonardo", "--model", "bert", *SHAPE, "--timeout", "60", *options]
    return run_program([*NCCLT, *words], env=job_environ(tmp_path, **more), cwd=tmp_path)


def test_env_prints_nothing_into_a_job_that_differs_from_the_measured_one(tmp_path, store, serving):
    """Of a server and of a store; a file is for later jobs, and is not compared."""
    for where in (("--server", serving[0]), ("--storage", store.url)):
        same = env(tmp_path, *where)
        assert (same.returncode, "NCCLT_RECOMMENDATION=0c0ffee1" in same.stdout) == (0, True), same.stderr
        for format in ("export", "mpirun-x", "docker-env"):
            other = env(tmp_path, *where, "--format", format, NCCL_NTHREADS="64")
            assert (other.returncode, other.stdout) == (3, "")
            assert "the measured one: NCCL_NTHREADS: not set measured, 64 here (the environment)" in other.stderr
        mixed = env(tmp_path, *where, "--allow-difference", "NCCL_MAX_CTAS", NCCL_MAX_CTAS=4)
        assert (mixed.returncode, mixed.stdout) == (3, "")
        accepted = env(tmp_path, *where, "--allow-difference", "NCCL_NTHREADS", NCCL_NTHREADS="64")
        assert (accepted.stdout, "NCCL_NTHREADS: not set" in accepted.stderr) == (same.stdout, True)
        again = env(tmp_path, *where, NCCL_ALGO="allreduce:tree")
        assert again.stdout == same.stdout, "what it exports replaces what an earlier one exported"
        written = env(tmp_path, *where, "--output", "job.env", NCCL_NTHREADS="64")
        assert written.returncode == 0, written.stderr


def test_env_prints_nothing_into_a_rank_without_a_gpu(tmp_path, store):
    def at(**more):
        return env(tmp_path, "--storage", store.url, PATH="/usr/bin:/bin", **more)

    rank = at(SLURM_STEP_ID=0, SLURM_PROCID=0)
    assert (rank.returncode, "A100-SXM-64GB measured, no GPU here (this machine)" in rank.stderr) == (3, True), (
        rank.stderr
    )
    for launch_node in ({}, {"SLURM_PROCID": 0}):
        assert at(**launch_node).returncode == 0


def test_it_starts_without_the_frameworks(tmp_path, store):
    options = [*NAMES, "--storage", store.url, "--policy-dir", str(tmp_path)]
    done = run_program(
        [sys.executable, "-X", "importtime", "-m", "ncclt", "run", *options, "--", "true"],
        env=job_environ(tmp_path),
        check=True,
    )
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert "argparse" in imported
    assert imported & {"typer", "click", "rich", "numpy", "sqlalchemy", "torch", "optuna", "pydantic"} == set()
    assert "statistics" not in imported
