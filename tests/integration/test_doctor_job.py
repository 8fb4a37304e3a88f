"""`ncclt doctor -- COMMAND`: the user's own job runs for a short while, and one page says what it uses."""

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ports import free_port
from program import run_program

HERE = Path(__file__).parent
JOB = [sys.executable, str(HERE.parent / "fakes" / "nccl_job.py")]

LIMITED = """
import json, os, sys
from ncclt.health.doctor.job import TimeLimits, run_job
limits = TimeLimits(silent=float(sys.argv[1]), steps=0.0, calls=0.0, grace=float(sys.argv[2]))
print(json.dumps(run_job(sys.argv[3:], os.environ, to_stderr=True, limits=limits).job.to_document()))
"""
DAEMON = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
with open("pids", "w") as file:
    file.write(f"{os.getpid()} {child.pid}")
"""


def _is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _environ(**more):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NCCL_")}
    return {**kept, **more}


@pytest.fixture
def doctor(nursery, tmp_path):
    """Return a caller of `ncclt doctor OPTIONS -- COMMAND`."""

    def call(command, *options, **environ):
        words = ["doctor", *options, "--", *map(str, command)]
        return subprocess.CompletedProcess(words, *nursery(words, _environ(**environ), tmp_path))

    return call


def _settings(printed):
    return {(row["name"], row["value"]): (row["set_by"], row["processes"]) for row in json.loads(printed)["settings"]}


def test_page_shows_what_nccl_uses_and_who_set_it(doctor, tmp_path):
    done = doctor([*JOB, "NCCL_ALGO=Ring"], NCCL_IB_HCA="mlx5_0", NCCL_DEBUG="WARN")

    page = done.stdout
    assert page.startswith("the job begins\nthe job ends\n\njob: ")
    assert "exit code 0" in page
    assert " ".join(page.split("NCCL_IB_HCA")[1].split()[:5]) == "mlx5_0 site shell 2 processes"
    assert "Ring    tuning  unknown: not this shell, nor a file of this node  2 processes" in page
    assert "NCCL_DEBUG_SUBSYS " not in page, "it is ncclt that set it"
    assert "1 x 2 ranks, 1 node  24 coll, 24 collnet, 0 nvls, 32 p2p  P2P/CUMEM x2  AllReduce RING/SIMPLE 4 MiB" in page
    assert "(3 calls)" in page
    assert "mlx5_0 (IB)" in page
    assert "warning ENV004: NCCL_ALGO=Ring" in page
    assert not list(tmp_path.iterdir())


def test_document_is_alone_on_standard_output(doctor):
    done = doctor(JOB, "--json", NCCL_IB_HCA="mlx5_0")

    document = json.loads(done.stdout)
    assert document["settings"][0]["set_by"] == "shell"
    assert (document["job"]["exit_code"], document["job"]["has_failed"]) == (0, False)
    assert "the job ends" in done.stderr


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        ([*JOB, "exit", "7"], 7, "\nverdict: job failed after"),
        (["sh", "-c", "kill -9 $$"], 137, "\nverdict: job killed by SIGKILL after"),
    ],
)
def test_job_that_fails_keeps_its_exit_code(doctor, command, code, said):
    done = doctor(command)

    assert done.returncode == code
    assert said in done.stdout
    assert f"exit code {code}\n" in done.stdout


def test_a_log_is_no_command(doctor, tmp_path):
    (tmp_path / "job.log").write_text("node-a:100:200 [0] NCCL INFO Using network IB\n")
    done = doctor(["job.log"])

    assert done.returncode == 2
    assert "hint: ncclt doctor --from job.log" in done.stderr


def test_training_without_nccl_is_named_as_such(doctor, tmp_path):
    pytest.importorskip("torch.distributed")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--master-port", free_port()]
    done = doctor([*launcher, HERE / "training" / "train.py", "transformer", "100000"])

    assert done.returncode == 4, done.stderr
    assert "(5 training steps recorded); exit code 0" in done.stdout
    assert "trained" not in done.stdout
    last = " ".join(done.stdout[done.stdout.index("no NCCL in this job") :].split())
    assert last.startswith(
        "no NCCL in this job: 2 ranks made 10 steps over gloo; 5 of them, which were recorded, sent "
    )
    assert "no NCCL log" not in done.stdout
    assert not list(tmp_path.iterdir())


def test_variables_of_launcher_and_program_are_told_apart(doctor):
    pytest.importorskip("torch")
    program = (
        "import os; os.environ['NCCL_BUFFSIZE'] = '8388608'; import torch; w = torch.ones(1, requires_grad=True); "
        "o = torch.optim.SGD([w]); [((w * 2).backward(), o.step()) for _ in range(3)]"
    )
    done = doctor(["env", "NCCL_IB_TIMEOUT=22", sys.executable, "-c", program], "--json", NCCL_IB_HCA="mlx5_0")

    assert _settings(done.stdout) == {
        ("NCCL_BUFFSIZE", "8388608"): ("program, in Python", 0),
        ("NCCL_IB_HCA", "mlx5_0"): ("shell", 0),
        ("NCCL_IB_TIMEOUT", "22"): ("launcher or script", 0),
    }


@pytest.mark.parametrize("words", [pytest.param(["stay"], marks=pytest.mark.thorough), ["stay", "deaf"]])
def test_job_that_goes_on_is_ended(tmp_path, words):
    argv = [sys.executable, "-c", LIMITED, "240", "0", *JOB, *words]
    done = run_program(argv, cwd=tmp_path, env=_environ(), check=True)

    document = json.loads(done.stdout)
    assert "(limit: 0 s after NCCL's first line)" in document["ending"]
    assert not document["has_failed"]
    assert document["exit_code"] > 128
    assert "the job begins\n" in done.stderr


def test_job_that_clears_the_folder_of_its_log_goes_on(doctor):
    done = doctor(["sh", "-c", "rm -rf .ncclt-record-*; sleep 1; echo the job goes on; exit 3"])

    assert done.returncode == 3, done.stderr
    assert done.stdout.startswith("the job goes on\n")
    page = " ".join(done.stdout.split())
    assert "missing: the log of the job cannot be used: No such file or directory; does the job clear" in page


def test_job_that_names_nccl_has_not_started_it(tmp_path):
    argv = [sys.executable, "-c", LIMITED, "240", "0", "sh", "-c", "echo backend: NCCL 2; sleep 1; echo the NCCL INFO"]
    done = run_program(argv, cwd=tmp_path, env=_environ(), check=True)

    assert json.loads(done.stdout)["ending"].startswith("ended after ")


@pytest.mark.parametrize("name", ["50%h", "a:b"])
def test_log_is_read_in_a_folder_of_any_name(nursery, tmp_path, name):
    folder = tmp_path / name
    folder.mkdir()
    code, printed, said = nursery(["doctor", "--json", "--", *JOB], _environ(), folder)

    document = json.loads(printed)
    assert (document["facts"]["log"]["processes"], document["facts"]["log"]["sources"]) == (
        2,
        ["node-a.100.log", "node-a.101.log"],
    ), (code, said)
    assert not list(folder.iterdir())


def test_nothing_outlives_the_doctor(tmp_path):
    """Neither a daemon that the job leaves behind, nor the job of a doctor that is killed."""
    argv = [sys.executable, "-c", LIMITED, "240", "0", sys.executable, "-c", DAEMON]
    subprocess.run(argv, cwd=tmp_path, env=_environ(), capture_output=True, timeout=240, check=True)
    pids = (tmp_path / "pids").read_text().split()
    assert not any(map(_is_alive, pids))

    (tmp_path / "pids").unlink()
    stays = [sys.executable, "-c", f"{DAEMON}time.sleep(600)"]
    with subprocess.Popen(
        [sys.executable, "-m", "ncclt", "doctor", "--", *stays], cwd=tmp_path, env=_environ(), stdout=subprocess.DEVNULL
    ) as killed:
        deadline_s = time.monotonic() + 240
        while not ((tmp_path / "pids").exists() and (tmp_path / "pids").read_text()) and time.monotonic() < deadline_s:
            time.sleep(0.05)
        killed.send_signal(signal.SIGKILL)
    pids = (tmp_path / "pids").read_text().split()
    while (any(map(_is_alive, pids)) or list(tmp_path.glob(".ncclt-*"))) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert not any(map(_is_alive, pids))
    assert not list(tmp_path.glob(".ncclt-*"))


def test_job_on_a_terminal_stays_on_a_terminal(tmp_path):
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        program = "import sys; print('terminal:', sys.stdout.isatty(), sys.stdin.isatty())"
        os.execv(sys.executable, [sys.executable, "-m", "ncclt", "doctor", "--", sys.executable, "-c", program])
    shown = b""
    with contextlib.suppress(OSError):
        while chunk := os.read(terminal, 1 << 16):
            shown += chunk
    os.waitpid(pid, 0)
    assert b"terminal: True True\r\n" in shown


def test_log_on_standard_output_is_read_and_passed_on(doctor):
    done = doctor(["env", "-u", "NCCL_DEBUG_FILE", *JOB], NCCL_IB_HCA="mlx5_0")

    assert "node-a:100:200 [0] NCCL INFO NCCL version 2.27.5+cuda12.8\n" in done.stdout
    assert "1 x 2 ranks, 1 node" in done.stdout
