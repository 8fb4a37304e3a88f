"""One persistent rank, without its process group: what it sets, what it puts back, what it refuses."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from ncclt.measure.benchmarks.torch_worker import ncclt_torch_session as session
from ncclt.measure.benchmarks.torch_worker import ncclt_torch_worker as worker
from ncclt.nccl.tuner_plugin.build import compiler

ORDER = {"level": "call", "variables": {}, "table": None}


class OneRank:
    """Agrees with itself, and with what `others` say."""

    def __init__(self):
        self.others = []

    def reach(self, mine, decide):
        return decide([mine, *self.others])

    def require(self, problem):
        if problem:
            raise worker.RefusedError(problem)


class Published:
    """A table that notes what is written into it."""

    def __init__(self):
        self.orders = []

    def publish(self, **order):
        self.orders.append(order)


@pytest.fixture
def rank(monkeypatch):
    """A rank of gloo between two trials, which brings no variable of NCCL."""
    for name in [name for name in os.environ if name.startswith("NCCL_")]:
        monkeypatch.delenv(name)
    own = {"host": "a", "node": "a", "device": "cpu", "index": -1, "problem": "", "equal": {}}
    job = SimpleNamespace(
        own=own, environment={}, agreement=OneRank(), place=worker.RankPlace(0, 1, 0, "a"), device=None, store=None
    )
    made = session.RankSession(worker, job, SimpleNamespace(backend="gloo"), worker.WorkerReport(None), None)
    yield made
    for name in [name for name in os.environ if name.startswith("NCCL_")]:
        os.environ.pop(name)


def applied(rank, **order):
    rank._apply({**ORDER, "level": "communicator", **order})


def test_the_default_is_what_nccls_own_files_say_and_not_unset(rank, tmp_path, monkeypatch):
    """NCCL reads them once: what a trial had set and then unset would stay at NCCL's default for good."""
    (tmp_path / "nccl.conf").write_text("NCCL_BUFFSIZE=8388608\n")
    rank._files = session.variables_of_files({"NCCL_CONF_FILE": str(tmp_path / "nccl.conf")}, system=tmp_path / "none")
    monkeypatch.setenv("NCCL_NTHREADS", "128")

    applied(rank, variables={"NCCL_BUFFSIZE": "1048576", "NCCL_NTHREADS": "64", "NCCL_ALGO": "Ring"})
    during = {name: os.environ.get(name) for name in ("NCCL_BUFFSIZE", "NCCL_NTHREADS", "NCCL_ALGO")}
    applied(rank, variables=dict.fromkeys(during))
    after = {name: os.environ.get(name) for name in during}

    assert during == {"NCCL_BUFFSIZE": "1048576", "NCCL_NTHREADS": "64", "NCCL_ALGO": "Ring"}
    assert after == {"NCCL_BUFFSIZE": "8388608", "NCCL_NTHREADS": "128", "NCCL_ALGO": None}


@pytest.mark.parametrize(
    ("named", "found"),
    [
        (False, {"NCCL_ALGO": "Ring", "NCCL_BUFFSIZE": "4194304", "NCCL_DEBUG ": " x=y\r"}),
        (True, {"NCCL_ALGO": "Tree", "NCCL_BUFFSIZE": "4194304"}),
        ("gone", {"NCCL_ALGO": "LL", "NCCL_BUFFSIZE": "4194304"}),
    ],
)
def test_files_are_read_as_nccl_reads_them(tmp_path, named, found):
    """The user's file, or the one named in its place, goes before the site's; nothing is trimmed."""
    (tmp_path / ".nccl.conf").write_bytes(b"# NCCL_X=1\nNCCL_ALGO=Ring\nNCCL_ALGO=again\nno sign\nNCCL_DEBUG = x=y\r\n")
    (tmp_path / "mine.conf").write_text("NCCL_ALGO=Tree")
    (tmp_path / "site.conf").write_text("NCCL_ALGO=LL\nNCCL_BUFFSIZE=4194304\n")
    environ = {"NCCL_CONF_FILE": str(tmp_path / ("gone" if named == "gone" else "mine.conf"))} if named else {}

    assert session.variables_of_files(environ, home=tmp_path, system=tmp_path / "site.conf") == found


def test_a_user_without_an_account_has_no_file(tmp_path, monkeypatch):
    def unknown(uid):
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr("pwd.getpwuid", unknown)
    (tmp_path / "site.conf").write_text("NCCL_ALGO=LL\n")
    assert session.variables_of_files({}, home=None, system=tmp_path / "site.conf") == {"NCCL_ALGO": "LL"}


@pytest.mark.parametrize(
    "order",
    [{"level": "process", "variables": {"NCCL_BUFFSIZE": "1"}}, {"level": "call", "variables": {"NCCL_ALGO": "Ring"}}],
)
def test_what_cannot_come_into_force_is_refused_and_not_left_out(rank, order):
    """It would be the setting before that is measured."""
    with pytest.raises(worker.RefusedError, match="cannot change in running ranks"):
        rank._apply({**ORDER, **order})


def test_a_table_is_there_even_where_the_variables_beside_it_are_refused(rank):
    """The controller knows from the answer that both were tried, and sends neither again."""
    rank._table = Published()
    rank._agreement.others = [{**rank._own, "equal": {"NCCL_MIN_CTAS": "2"}}]
    with pytest.raises(worker.RefusedError, match="NCCL_MIN_CTAS is 4 on rank 0 and 2 on rank 1"):
        applied(rank, variables={"NCCL_MIN_CTAS": "4"}, table={"at": 0})
    assert rank._table.orders == [{"at": 0}]


def test_a_rank_that_would_choose_otherwise_than_the_others_says_so(rank, tmp_path, monkeypatch):
    """Ranks that disagree hang or send wrong data, for which a setting would be blamed."""
    plugin = tmp_path / "libnccl-tuner-ncclt.so"
    monkeypatch.setenv("NCCL_TUNER_PLUGIN", str(plugin))
    assert rank._missing() == (f"rank 0 on a does not find {plugin} (copy it there, or use --through variables)")
    plugin.touch()
    assert rank._missing() == ""
    monkeypatch.setenv("NCCL_TUNER_PLUGIN", "ncclt")  # found by the loader
    assert rank._missing() == ""


@pytest.mark.parametrize(("number", "version"), [(23004, "2.30.4"), (2804, "2.8.4"), (21005, "2.10.5")])
def test_the_library_that_is_loaded_tells_its_own_version(tmp_path, number, version):
    """PyTorch tells that of its headers, which decides wrongly what NCCL reads again."""
    if (compile_it := compiler()) is None:
        pytest.skip("no C compiler here: no library can be made")
    (source := tmp_path / "nccl.c").write_text(f"int ncclGetVersion(int *number) {{ *number = {number}; return 0; }}\n")
    library = tmp_path / "a folder" / "libnccl.so.2"
    library.parent.mkdir()
    subprocess.run((compile_it, "-shared", "-fPIC", "-o", str(library), str(source)), check=True)
    program = (
        "import ctypes, runpy, sys\n"
        "tell = runpy.run_path(sys.argv[1])['loaded_nccl']\n"
        "assert tell() == ''\n"
        "ctypes.CDLL(sys.argv[2])\n"
        "print(tell())\n"
    )
    words = (sys.executable, "-c", program, session.__file__, str(library))
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip() == version
