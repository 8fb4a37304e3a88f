"""`ncclt run` starts the job as if it were not there, whatever fails on its side; and what must not start does not."""

import contextlib
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import hostile_server
import pytest
import run_job
from run_job import AWAY, NAMES, PATIENT_S, start

import ncclt

nursery, run = run_job.nursery, run_job.run


def is_unchanged(done, given):
    """Tell whether the command was started with the environment that ncclt itself was given, and why was said once.

    A hint stands below the reason, on a line of its own, as in every other error.
    """
    shown = repr(sorted((os.fsencode(name), os.fsencode(value)) for name, value in given.items())).encode()
    reason, *hint = done.stderr.splitlines()
    is_said_once = reason.endswith(b"; nothing set") and len(hint) <= 1
    return (done.returncode, done.stdout) == (0, shown) and is_said_once and all(b"  hint: " in one for one in hint)


# Stderr as it comes.


def closed(folder):
    return None


def full_disk(folder):
    return os.open("/dev/full", os.O_WRONLY)


def full_file_system(folder):
    return os.open(folder / "stderr", os.O_WRONLY | os.O_CREAT)


def reader_gone(folder):
    reading, writing = os.pipe()
    os.close(reading)
    return writing


def nobody_reads(folder):
    """A pipe that is full, and says so instead of waiting."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writing, b"x" * 65536)
    return writing, reading


def read_only(folder):
    return os.open(os.devnull, os.O_RDONLY)


STREAMS = [closed, full_disk, full_file_system, reader_gone, nobody_reads, read_only]


@pytest.mark.parametrize(
    ("stream", "words"),
    [
        *((stream, ()) for stream in STREAMS),
        *((full_disk, words) for words in [("--debug",), ("--report", "reports"), ("--shared", "shared")]),
    ],
)
def test_stderr_that_takes_nothing_stops_no_job(tmp_path, stream, words):
    (tmp_path / "shared").mkdir()
    opened = stream(tmp_path)
    kept = opened if isinstance(opened, tuple) else (opened,)

    def prepare():
        if stream is full_file_system:
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        if opened is None:
            os.close(2)

    try:
        asked = ("--server", AWAY, *NAMES, "--nodes", "2", *words)
        done, _given = start(tmp_path, *asked, command=["echo", "ran"], stderr=kept[0], preexec_fn=prepare)
    finally:
        for number in filter(None, kept):
            os.close(number)
    assert (done.returncode, done.stdout) == (0, b"ran\n")


# Values from outside: command line, environment, files.


@pytest.mark.parametrize("host", ["http://[::1/x", f"http://{'h' * 300}/", "\n", "http://\udcff/"])
def test_a_server_that_is_no_address_stops_no_job(tmp_path, run, host):
    assert is_unchanged(*run(*NAMES, "--server", host))
    assert is_unchanged(*run(*NAMES, environ=run_job.job_environ(tmp_path, NCCLT_SERVER=host)))
    refused, _given = run(*NAMES, "--server", host, "--fallback", "fail")
    assert (refused.returncode != 0, refused.stdout) == (True, b"")


@pytest.mark.parametrize(
    ("words", "more"),
    [
        (["--cluster", "\udcff", "--model", "bert"], {}),
        (["--model", "bert"], {"NCCLT_CLUSTER": "\udcff"}),
        (NAMES, {"NCCLT_STORAGE": "sqlite:////proc/1/nowhere/x.db"}),
        (NAMES, {"NCCLT_STORAGE": "postgresql://nobody@127.0.0.1:9/x"}),
        (NAMES, {"NCCLT_SERVER": AWAY, "NCCLT_API_KEY": "two\nlines"}),
        (NAMES, {"NCCLT_SERVER": AWAY, "XDG_CACHE_HOME": "/dev/null/x"}),
        ([*NAMES, "--server", AWAY, "--timeout", "1e300"], {}),
        ([*NAMES, "--server", AWAY, "--report", "/dev/null/x"], {}),
    ],
)
def test_values_from_outside_stop_no_job(tmp_path, run, words, more):
    assert is_unchanged(*run(*words, environ=run_job.job_environ(tmp_path) | more))


@pytest.mark.parametrize("words", [(), ("--no-plugin", "--report", "reports")])
def test_an_environment_that_python_cannot_hand_on_is_left_as_it_is(tmp_path, words):
    """One variable has no name; with an answer, what it sets is given up."""
    environ = {**run_job.job_environ(tmp_path), "": "x"}
    with hostile_server.hostile("none") as server:
        for url in (AWAY, server.url):
            asked = (*NAMES, "--server", url, "--timeout", "60", *words)
            command = ["sh", "-c", "tr '\\0' '\\n' </proc/self/environ; exit 5"]
            done, _given = start(tmp_path, *asked, environ=environ, command=command)
            shown = done.stdout.decode(errors="surrogateescape").splitlines()
            assert (done.returncode, "=x" in shown) == (5, True), done.stderr
            assert not [line for line in shown if line.startswith("NCCL_")]
            assert done.stderr.lower().count(b"nothing set") == 1
            assert b"Traceback" not in done.stderr


PROJECTS = {
    "broken": lambda path: path.write_text("server = [\n"),
    "no text": lambda path: path.write_bytes(b"server = '\xff\xfe'\n"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "endless": lambda path: path.symlink_to("/dev/zero"),
    "a pipe": os.mkfifo,
    "a folder": Path.mkdir,
}


@pytest.mark.parametrize("kind", PROJECTS)
def test_a_project_file_of_any_kind_stops_no_job(tmp_path, run, nursery, kind):
    PROJECTS[kind](tmp_path / "ncclt.toml")
    done, given = run("--model", "bert", environ=run_job.job_environ(tmp_path, NCCLT_CLUSTER="leonardo"))
    assert done.returncode == 0
    assert done.stdout == run(*NAMES, environ=given, folder="/")[0].stdout
    assert b"nothing set" in done.stderr.lower()
    assert len(done.stderr.splitlines()) <= 3
    if kind != "a link to itself":  # is no file, as where there is none
        code, out, err = nursery(["env", *NAMES], given, tmp_path)
        assert (code, out, "ncclt.toml" in err) == (2, "", True), err


CACHED = {
    "saved": [float("inf"), float("nan"), 1e300, -1e300, "x", None],
    "etag": ["\u2603", "\r\nX: y", 7],
    "text": ["", "[" * 100_000, 7],
    "schema": [10**400],
}


def test_a_cache_of_any_content_stops_no_job(tmp_path, run):
    """Each file that an honest answer has left is spoilt in turn; the server is away by then."""
    environ = run_job.job_environ(tmp_path)
    with hostile_server.hostile("none") as server:
        words = [*NAMES, "--server", server.url, "--timeout", "60"]
        fresh, _given = run(*words, environ=environ)
    assert b"NCCL_" in fresh.stdout, fresh
    files = [path for path in Path(environ["XDG_CACHE_HOME"]).rglob("*.json") if path.is_file()]
    assert files
    for path in files:
        honest = json.loads(path.read_text())
        spoilt = [json.dumps({**honest, field: value}) for field, values in CACHED.items() for value in values]
        for text in [*spoilt, "", "[" * 100_000, "\udcff", None]:
            path.unlink()
            if text is None:
                os.mkfifo(path)
            else:
                path.write_text(text, errors="surrogateescape")
            done, _given = run(*words, environ=environ)
            assert (done.returncode, done.stdout[:2]) == (0, b"[("), (text, done)
            assert b"Traceback" not in done.stderr


# What is broken in ncclt itself.

BREAKER = """
import importlib.abc, os, sys
module, _, kind = os.environ.get("NCCLT_TEST_BREAKS", "").partition(":")
class Breaker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == module:
            raise {"Own": type("Own", (Exception,), {})}.get(kind) or getattr(__import__("builtins"), kind)("broken")
sys.meta_path.insert(0, Breaker())
"""


def breaking(tmp_path, what):
    folder = tmp_path / "breaker"
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(BREAKER)
    return run_job.job_environ(tmp_path, PYTHONPATH=folder, NCCLT_TEST_BREAKS=what)


@pytest.mark.parametrize(
    "what",
    [
        "ncclt.cli.run_prepare:SyntaxError",
        "ncclt.deliver.job_plan:KeyError",
        "ncclt.deliver.answer:RecursionError",
        "ncclt.client:Own",
    ],
)
def test_an_unexpected_exception_stops_no_job(tmp_path, what):
    (tmp_path / "ncclt.toml").write_text("cluster = 'leonardo'\n")
    words = ["--model", "bert", "--server", AWAY]
    environ = breaking(tmp_path, what)
    assert is_unchanged(*start(tmp_path, *words, environ=environ))


def test_a_failure_is_shown_and_final_where_that_was_asked_for(tmp_path):
    words = [*NAMES, "--server", AWAY]
    environ = breaking(tmp_path, "ncclt.deliver.job_plan:KeyError")
    shown, _given = start(tmp_path, *words, "--debug", environ=environ)
    assert (shown.returncode, b"Traceback" in shown.stderr, shown.stdout != b"") == (0, True, True)
    for refusing in (["--fallback", "fail"], ["--dry-run"]):
        done, _given = start(tmp_path, *words, *refusing, environ=environ)
        assert (done.stdout, done.returncode == 0) == (b"", refusing == ["--dry-run"])


@pytest.mark.parametrize("words", [["--shared", "."], ["--policy", "table.csv"]])
def test_a_process_that_cannot_follow_the_others_does_not_start(tmp_path, words):
    """They may have been given something; only the user can say that all are without it."""
    environ = breaking(tmp_path, "ncclt.deliver.job_plan:KeyError")
    done, _given = start(tmp_path, *NAMES, *words, environ=environ)
    assert (done.returncode, done.stdout) == (69, b"")


def test_an_environment_that_the_system_refuses_is_left_out(tmp_path):
    """What we add may be the last straw; then the command is started without."""
    code = (
        "import os, sys; from ncclt.cli.run import _start; from ncclt.deliver.job_plan import JobPlan\n"
        "words = ['echo', 'ran']\n"
        "large = JobPlan(argv=words, environ={**os.environ, sys.argv[1]: sys.argv[2] * 200_000})\n"
        "sys.exit(_start(large, words, may_differ=sys.argv[3] == 'may'))"
    )
    for name, value, may, wanted in (("A", "x", "may", b"ran\n"), ("A=", "", "may", b"ran\n"), ("A", "x", "not", b"")):
        done = subprocess.run(
            [sys.executable, "-c", code, name, value, may], capture_output=True, timeout=PATIENT_S, check=False
        )
        assert (done.stdout, done.returncode) == (wanted, 0 if wanted else 126), done.stderr


SHOW_ENVIRON = ["sh", "-c", "tr '\\0' '\\n' </proc/self/environ"]


@pytest.mark.parametrize("words", [[], ["--report", "reports"]])
def test_python_adds_no_locale_to_the_commands_environment(tmp_path, words):
    """Where none is set, Python sets LC_CTYPE for itself (PEP 538), and the job would inherit it."""
    clean = {
        name: value for name, value in run_job.job_environ(tmp_path).items() if not name.startswith(("LC_", "LANG"))
    }
    for environ, wanted in ((clean, []), ({**clean, "LC_CTYPE": "C.UTF-8"}, ["LC_CTYPE=C.UTF-8"])):
        done, _given = start(tmp_path, *NAMES, *words, environ=environ, command=SHOW_ENVIRON)
        assert [line for line in done.stdout.decode().splitlines() if line.startswith("LC_")] == wanted, done.stderr


@pytest.mark.parametrize(
    "environ",
    [
        {"PYTHONHASHSEED": "x"},
        {"PYTHONPATH": "broken"},
        {"PYTHONWARNINGS": "error"},
    ],
    ids=str,
)
def test_an_isolated_python_starts_the_job_whatever_variables_break_python(tmp_path, environ):
    """`python -I -m ncclt run`: the job keeps these variables, and no Python of ours reads them."""
    (tmp_path / "broken").mkdir()
    for name in ("argparse", "json", "signal", "re"):
        (tmp_path / "broken" / f"{name}.py").write_text("raise SystemExit('broken')")
    done = subprocess.run(
        [sys.executable, "-I", "-m", "ncclt", "run", *NAMES, "--", *SHOW_ENVIRON],
        env={**run_job.job_environ(tmp_path), **environ},
        cwd=tmp_path,
        capture_output=True,
        timeout=PATIENT_S,
        check=False,
    )
    ((name, value),) = environ.items()
    assert (done.returncode, f"{name}={value}" in done.stdout.decode().splitlines()) == (0, True), done.stderr


@pytest.mark.parametrize("words", [[], ["--report", "reports"]])
def test_few_descriptors_are_enough_to_start_the_job(tmp_path, words):
    """With four, as few as a shell has, no Python starts that has a `.pth` file: docs/trainer/run.md says so."""
    limited = ["sh", "-c", 'ulimit -n 16; exec "$@"', "sh", sys.executable, "-I", "-m", "ncclt", "run", *NAMES, *words]
    done = subprocess.run(
        [*limited, "--", "echo", "ran"],
        env=run_job.job_environ(tmp_path),
        cwd=tmp_path,
        capture_output=True,
        timeout=PATIENT_S,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, b"ran\n"), done.stderr


def test_a_start_that_a_failed_test_left_behind_answers_no_later_one(tmp_path, nursery):
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    nursery.begin(["serve", "--port", "0"], environment, tmp_path)
    assert nursery(["--version"], environment, tmp_path)[:2] == [0, f"ncclt {ncclt.__version__}\n"]
