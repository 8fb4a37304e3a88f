"""`ncclt run` starts the job as if it were not there, whatever fails on its side; and what must not start does not."""

import contextlib
import ctypes
import importlib.util
import json
import os
import resource
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

_HERE = Path(__file__).parent
_spec = importlib.util.spec_from_file_location("run_starting", _HERE / "test_run.py")
alone = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(alone)
library, store = alone.library, alone.store
FAKE = SimpleNamespace(**runpy.run_path(str(_HERE.parent / "fakes" / "hostile_server.py")))

AWAY = "http://127.0.0.1:9"
NAMES = ["--cluster", "leonardo", "--model", "bert", *alone.SHAPE]
PATIENT_S = 120
PR_SET_CHILD_SUBREAPER = 36  # prctl(2)
# Shows its environment on stdout, byte for byte.
SHOW = [sys.executable, "-c", "import os, sys; sys.stdout.buffer.write(repr(sorted(os.environb.items())).encode())"]


@pytest.fixture(scope="module")
def nursery():
    """Return a caller of `ncclt` that saves the start of the interpreter; it returns exit code, stdout and stderr."""
    path = _HERE.parent / "fakes" / "ncclt_nursery.py"
    with subprocess.Popen(
        [sys.executable, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "ready\n"

        def call(words, environ, folder):
            process.stdin.write(json.dumps([words, environ, str(folder)]) + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        yield call
        process.stdin.close()


@pytest.fixture
def run(nursery, tmp_path):
    """Return a caller of `ncclt run WORDS -- SHOW` that returns what became of it, and the environment it got."""

    def call(*words, environ=None, folder=tmp_path):
        given = alone.environ(tmp_path) if environ is None else environ
        code, out, err = nursery(["run", *words, "--", *SHOW], given, folder)
        streams = [text.encode(errors="surrogateescape") for text in (out, err)]
        return subprocess.CompletedProcess(words, code, *streams), given

    return call


def start(tmp_path, *words, environ=None, command=SHOW, **options):
    """Run `ncclt run WORDS -- command`; return what became of it, and the environment that it was started in."""
    given = alone.environ(tmp_path) if environ is None else environ
    options = {"cwd": tmp_path, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    argv = [*alone.NCCLT, "run", *words, "--", *command]
    return subprocess.run(argv, env=given, timeout=PATIENT_S, check=False, **options), given


def is_unchanged(done, given):
    """Tell whether the command was started with the environment that ncclt itself was given, and one line of ours."""
    shown = repr(sorted((os.fsencode(name), os.fsencode(value)) for name, value in given.items())).encode()
    lines = done.stderr.splitlines()
    return (done.returncode, done.stdout, len(lines), b"nothing is set" in done.stderr) == (0, shown, 1, True)


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
        done, _given = start(
            tmp_path, "--server", AWAY, *NAMES, "--nodes", "2", *words, command=["echo", "ran"], stderr=kept[0],
            preexec_fn=prepare,
        )  # fmt: skip
    finally:
        for number in filter(None, kept):
            os.close(number)
    assert (done.returncode, done.stdout) == (0, b"ran\n")


def test_stdout_of_the_command_is_its_own(tmp_path):
    """It may be full: that is seen by the command, if it writes."""
    with Path("/dev/full").open("w") as full:
        done, _given = start(
            tmp_path, "--server", AWAY, *NAMES, command=["sh", "-c", "echo mine >&2; exit 7"], stdout=full
        )
    assert (done.returncode, done.stderr.splitlines()[-1]) == (7, b"mine")
    assert b"stdout" not in done.stderr


# Values from outside: command line, environment, files.

HOSTS = [
    "http://host..x:80", "http://a..b/", "http://[::1/x", f"http://{'h' * 300}/", f"http://{'h' * 70}.example/",
    "http://h\u00f6st.\u2603.invalid/", "ftp://127.0.0.1/", "http://127.0.0.1:99999999/", "http://", "\n", "http://\udcff/",
]  # fmt: skip


@pytest.mark.parametrize("host", HOSTS)
def test_a_server_that_is_no_address_stops_no_job(tmp_path, run, host):
    assert is_unchanged(*run(*NAMES, "--server", host))
    assert is_unchanged(*run(*NAMES, environ=alone.environ(tmp_path, NCCLT_SERVER=host)))
    refused, _given = run(*NAMES, "--server", host, "--fallback", "fail")
    assert (refused.returncode != 0, refused.stdout) == (True, b"")


@pytest.mark.parametrize(
    ("words", "more"),
    [
        (["--cluster", "\udcff", "--model", "bert"], {}),
        (["--cluster", "c", "--model", "\udcff\udcfe"], {"NCCLT_SERVER": AWAY}),
        (["--model", "bert"], {}),
        (["--model", "bert"], {"NCCLT_CLUSTER": "\udcff"}),
        (NAMES, {"NCCLT_STORAGE": "nonsense"}),
        (NAMES, {"NCCLT_STORAGE": "sqlite:////proc/1/nowhere/x.db"}),
        (NAMES, {"NCCLT_STORAGE": "sqlite:////dev/full"}),
        (NAMES, {"NCCLT_STORAGE": "postgresql://nobody@127.0.0.1:9/x"}),
        (NAMES, {"NCCLT_SERVER": AWAY, "NCCLT_API_KEY": "two\nlines"}),
        (NAMES, {"NCCLT_SERVER": AWAY, "XDG_CACHE_HOME": "/dev/null/x"}),
        ([*NAMES, "--server", AWAY, "--timeout", "1e300"], {}),
        ([*NAMES, "--server", AWAY, "--report", "/dev/null/x"], {}),
        ([*NAMES, "--server", AWAY, "--nodes", "9" * 500], {}),
    ],
)
def test_values_from_outside_stop_no_job(tmp_path, run, words, more):
    assert is_unchanged(*run(*words, environ=alone.environ(tmp_path) | more))


def test_a_working_folder_that_is_gone_stops_no_job(tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    environ = alone.environ(tmp_path, NCCLT_PLUGIN="libnccl-tuner-ncclt.so")
    assert is_unchanged(*start(tmp_path, *NAMES, environ=environ, cwd=gone, preexec_fn=lambda: gone.rmdir()))


PROJECTS = {
    "broken": lambda path: path.write_text("server = [\n"),
    "no text": lambda path: path.write_bytes(b"server = '\xff\xfe'\n"),
    "deep": lambda path: path.write_text("server = " + "[" * 100_000),
    "another key": lambda path: path.write_text("evil = 'x'\n"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "endless": lambda path: path.symlink_to("/dev/zero"),
    "a pipe": os.mkfifo,
    "a folder": Path.mkdir,
}


@pytest.mark.parametrize("kind", PROJECTS)
def test_a_project_file_of_any_kind_stops_no_job(tmp_path, run, nursery, kind):
    PROJECTS[kind](tmp_path / "ncclt.toml")
    done, given = run("--model", "bert", environ=alone.environ(tmp_path, NCCLT_CLUSTER="leonardo"))
    assert done.returncode == 0
    assert done.stdout == run(*NAMES, environ=given, folder="/")[0].stdout
    assert b"nothing is set" in done.stderr
    assert len(done.stderr.splitlines()) <= 2
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
    environ = alone.environ(tmp_path)
    with FAKE.hostile("none") as server:
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
    return alone.environ(tmp_path, PYTHONPATH=folder, NCCLT_TEST_BREAKS=what)


@pytest.mark.parametrize(
    "what",
    [
        "ncclt.cli.run_options:ImportError", "ncclt.cli.run_prepare:SyntaxError", "argparse:ImportError",
        "ncclt.delivery:KeyError", "ncclt.job:MemoryError", "ncclt.cli.offer:RecursionError", "ncclt.client:OSError",
        "ncclt.client:Own", "ncclt.core.policy:UnicodeError", "tomllib:AttributeError",
    ],
)  # fmt: skip
def test_an_unexpected_exception_stops_no_job(tmp_path, what):
    (tmp_path / "ncclt.toml").write_text("cluster = 'leonardo'\n")
    words = ["--model", "bert", "--server", AWAY]
    environ = breaking(tmp_path, what)
    assert is_unchanged(*start(tmp_path, *words, environ=environ))


def test_a_failure_is_shown_and_final_where_that_was_asked_for(tmp_path):
    words = [*NAMES, "--server", AWAY]
    environ = breaking(tmp_path, "ncclt.delivery:KeyError")
    shown, _given = start(tmp_path, *words, "--debug", environ=environ)
    assert (shown.returncode, b"Traceback" in shown.stderr, shown.stdout != b"") == (0, True, True)
    for refusing in (["--fallback", "fail"], ["--dry-run"]):
        done, _given = start(tmp_path, *words, *refusing, environ=environ)
        assert (done.stdout, done.returncode == 0) == (b"", refusing == ["--dry-run"])


@pytest.mark.parametrize("words", [["--shared", "."], ["--policy", "table.csv"]])
def test_a_process_that_cannot_follow_the_others_does_not_start(tmp_path, words):
    """They may have been given something; only the user can say that all are without it."""
    environ = breaking(tmp_path, "ncclt.delivery:KeyError")
    done, _given = start(tmp_path, *NAMES, *words, environ=environ)
    assert (done.returncode, done.stdout) == (69, b"")


@pytest.mark.parametrize(
    "words", [["--nodes", "two", *NAMES], ["--bogus", *NAMES], ["--cluster", "c"], [*NAMES, "--timeout", "nan"]]
)
def test_words_that_make_no_sense_are_refused_whatever_is_installed(run, words):
    done, _given = run(*words)
    assert (done.returncode, done.stdout, done.stderr.startswith(b"ncclt: ")) == (2, b"", True)


def test_an_environment_that_the_system_refuses_is_left_out(tmp_path):
    """What we add may be the last straw; then the command is started without."""
    code = (
        "import os, sys; from ncclt.cli.run import Start, _started\n"
        "plain = Start(argv=['echo', 'ran'], environ=dict(os.environ))\n"
        "large = Start(argv=['echo', 'ran'], environ={**os.environ, sys.argv[1]: sys.argv[2] * 200_000})\n"
        "sys.exit(_started(large, plain, may_differ=sys.argv[3] == 'may'))"
    )
    for name, value, may, wanted in (("A", "x", "may", b"ran\n"), ("A=", "", "may", b"ran\n"), ("A", "x", "not", b"")):
        done = subprocess.run(
            [sys.executable, "-c", code, name, value, may], capture_output=True, timeout=PATIENT_S, check=False
        )
        assert (done.stdout, done.returncode) == (wanted, 0 if wanted else 126), done.stderr


# Servers that attack.


@pytest.mark.parametrize("attack", FAKE.ATTACKS)
def test_a_server_that_attacks_stops_no_job(tmp_path, nursery, attack):
    """With a plugin, so that the table is asked for as well."""
    (tmp_path / "plugin.so").touch()
    environ = alone.environ(tmp_path, NCCLT_PLUGIN=tmp_path / "plugin.so")
    timeout_s = 0.5 if attack in FAKE.OUTAGES else 60
    with FAKE.hostile(attack) as server:
        words = ["run", *NAMES, "--server", server.url, "--timeout", str(timeout_s)]
        begun_s = time.monotonic()
        code, out, err = nursery([*words, "--", *SHOW], environ, tmp_path)
    shown = {os.fsdecode(name): os.fsdecode(value) for name, value in eval(out)}  # what SHOW printed
    added = {name: value for name, value in shown.items() if environ.get(name) != value}

    assert code == 0
    assert "Traceback" not in err
    assert {name: value for name, value in shown.items() if name not in added} == environ
    own = {"NCCL_TUNER_PLUGIN": str(tmp_path / "plugin.so"), "NCCLT_POLICY": added.get("NCCLT_POLICY")}
    assert FAKE.all_legal({name: value for name, value in added.items() if value != own.get(name)}), added
    if attack in FAKE.OUTAGES:
        assert added == {}
        assert time.monotonic() - begun_s < timeout_s + 20
    if attack in FAKE.HARMLESS:
        assert added["NCCLT_RECOMMENDATION"]


def test_a_bad_answer_is_decided_against_by_the_whole_job(tmp_path, run):
    """With --shared: what a server says wrong must not be what keeps a job from starting."""
    (tmp_path / "shared").mkdir()
    task = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NUM_TASKS": "2"}
    with FAKE.hostile("a value is a list") as server:
        words = ["--server", server.url, "--shared", "shared", "--wait", "0", "--timeout", "60"]
        for rank in "01":
            environ = alone.environ(tmp_path, **task, SLURM_PROCID=rank)
            done, _given = run(*NAMES, *words, environ=environ)
            assert (done.returncode, b"NCCL_" in done.stdout) == (0, False), done.stderr
    assert len(list((tmp_path / "shared").glob("ncclt-decision-*"))) == 1


def test_all_questions_to_a_server_share_one_deadline(tmp_path, monkeypatch):
    from ncclt import client
    from ncclt.cli import offer

    asked = []

    def fetch_env(_server, *, format, timeout_s, **_more):
        asked.append(timeout_s)
        time.sleep(0.2)
        # Revisions that do not match make it ask a third time.
        golden = _HERE.parent / "golden" / "env" / f"tuned.{format}"
        return client.Fetched(golden.read_text().replace("id=r-1f3c", "id=r-other"), "server")

    monkeypatch.setattr(client, "fetch_env", fetch_env)
    options = dict.fromkeys(("nodes", "gpus_per_node", "nccl_version"))
    arguments = SimpleNamespace(model="bert", timeout=0.5, fallback="none", **options)
    with pytest.raises(offer.InputError, match="one revision"):
        offer.offered(arguments, "leonardo", AWAY, None, with_table=True)
    assert asked[0] <= 0.5
    assert asked[1] <= 0.3
    assert 0 < asked[2] <= 0.1


# Servers that files name.


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
            code, out, err = nursery(words, alone.environ(tmp_path), tmp_path)
            assert (code, out) == (69 if taken else 2, "")
            assert (f"is named by {project}" if taken else "chmod go-w") in err


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a file of another user")
def test_a_store_named_by_another_users_file_is_refused_where_it_is_needed(tmp_path, run, nursery):
    project = tmp_path / "ncclt.toml"
    project.write_text("storage = 'sqlite:////nowhere/else.db'\ncluster = 'leonardo'\n")
    os.chown(project, 4711, 4711)

    def call(*words):
        return nursery(words, alone.environ(tmp_path), tmp_path)

    code, _out, err = call("studies", "list")
    assert (code, "it belongs to user 4711" in err) == (2, True)
    assert call("studies", "list", "--storage", f"sqlite:///{tmp_path}/own.db")[0] != 2
    assert "not taken" in call("config", "show", "--json")[1]
    done, _given = run("--model", "bert")
    assert (done.returncode, b"it belongs to user 4711" in done.stderr) == (0, True)


# Beside the command.


@pytest.fixture
def beside(tmp_path, store):
    """Return a starter of `ncclt run --report` around a command; what it starts is ended."""
    running = []

    def call(command, **options):
        words = [*NAMES, "--storage", store.url, "--no-plugin", "--report", str(tmp_path / "reports")]
        process = subprocess.Popen(
            [*alone.NCCLT, "run", *words, "--", *command], env=alone.environ(tmp_path), cwd=tmp_path,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options,
        )  # fmt: skip
        running.append(process)
        return process

    yield call
    for process in running:
        with process:
            process.kill()


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_the_command_ends_with_us_when_we_are_killed(beside):
    """With everything that it has started, in a session of its own too, as the ranks of torchrun are."""
    code = (
        "import os, subprocess, sys, time\n"
        "rank = subprocess.Popen(['sleep', '300'], start_new_session=True)\n"
        "print(os.getpid(), rank.pid, flush=True)\n"
        "time.sleep(300)"
    )
    process = beside([sys.executable, "-c", code])
    pids = [int(word) for word in process.stdout.readline().split()]
    try:
        assert all(is_running(pid) for pid in pids)
        process.send_signal(signal.SIGKILL)
        deadline = time.monotonic() + PATIENT_S
        while any(is_running(pid) for pid in pids) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert [pid for pid in pids if is_running(pid)] == []
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_as_the_first_process_of_a_container_it_reaps_the_orphans(beside):
    """Here as a subreaper, which inherits orphans as process 1 does."""
    code = (
        "import os, subprocess, sys, time\n"
        "from pathlib import Path\n"
        "leave = ['sh', '-c', 'sleep 0.5 >&- 2>&- & echo $!']\n"
        "orphan = subprocess.run(leave, capture_output=True, text=True).stdout.strip()\n"
        "deadline = time.monotonic() + 60\n"
        "while Path(f'/proc/{orphan}').exists() and time.monotonic() < deadline:\n"
        "    time.sleep(0.05)\n"
        "sys.exit(9 if Path(f'/proc/{orphan}').exists() else 5)"
    )
    libc = ctypes.CDLL(None)
    process = beside([sys.executable, "-c", code], preexec_fn=lambda: libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
    _out, err = process.communicate(timeout=PATIENT_S)
    assert process.returncode == 5, err


def test_reports_that_cannot_be_kept_stop_no_job(tmp_path, store, run):
    (tmp_path / "file").touch()
    words = [*NAMES, "--storage", store.url, "--no-plugin", "--report", "file"]
    done, _given = run(*words)
    assert (done.returncode, b"NCCLT_RECOMMENDATION" in done.stdout) == (0, True)
    assert b"no reports are kept" in done.stderr
    refused, _given = run(*words, "--fallback", "fail")
    assert (refused.returncode, refused.stdout) == (1, b"")
