"""Every way in which nccl-tests can end, through every launcher that can run here: an outcome, and nothing is left.

The processes are real, the times are the stand-in's. A launch carries a word in its environment, by which whatever it
started is found, in whatever session.
"""

import os
import runpy
import shutil
import sys
import uuid
from contextlib import contextmanager
from pathlib import Path

import pytest

from ncclt.core.message import Collective, Message
from ncclt.core.setting import DEFAULT
from ncclt.core.trial import Outcome
from ncclt.errors import NodesLostError
from ncclt.launch.launcher import JobShape
from ncclt.launch.local import LocalLauncher
from ncclt.launch.mpi import MpirunLauncher, ask_mpi_flavour
from ncclt.launch.slurm.allocation import read_allocation
from ncclt.launch.slurm.launcher import SlurmLauncher
from ncclt.measure import LaunchedRunner, Timeouts, ask_through
from ncclt.measure.benchmarks.nccl_tests.benchmark import NcclTests
from ncclt.measure.benchmarks.nccl_tests.features import detect
from ncclt.testing.samples import sample_cluster

HERE = Path(__file__).parent
FAKES = runpy.run_path(str(HERE.parent / "fakes" / "nccl_tests_stand_in.py"))
LEFTOVERS = runpy.run_path(str(HERE.parent / "fakes" / "leftovers.py"))

GRACE_S = 0.5
"""Between SIGTERM and SIGKILL; nothing here has anything to save."""

CRASHED, INVALID, OK, TIMEOUT, WRONG = (
    Outcome.CRASHED,
    Outcome.INVALID,
    Outcome.OK,
    Outcome.TIMEOUT,
    Outcome.WRONG_RESULT,
)

# fault -> outcome, what its words begin with, seconds it may take; only a hang takes all of them.
FAULTS = {
    "hang": (TIMEOUT, "not done within", 2.0),
    "stubborn_child": (TIMEOUT, "not done within", 3.0),
    "segfault": (CRASHED, "ended by SIGSEGV", 60.0),
    "killed": (CRASHED, "ended by SIGKILL", 60.0),
    "usage": (INVALID, "exit code 0: nccl-tests measured nothing: it does not know one of the options", 60.0),
    "partial": (CRASHED, "exit code 1", 60.0),
    "nan": (INVALID, "exit code 0: nccl-tests printed no usable time", 60.0),
    "glued": (INVALID, "exit code 0: nccl-tests measured nothing: none of the 12 lines", 60.0),
    "wrong": (WRONG, "data came out wrong", 60.0),
    "wrong_exit_1": (WRONG, "data came out wrong", 60.0),
    "out_of_bounds": (WRONG, "data came out wrong", 60.0),
    "no_algorithm": (INVALID, "NCCL has no such algorithm and protocol", 60.0),
    "out_of_memory": (CRASHED, "CUDA out of memory", 60.0),
    "oom_kill": (CRASHED, "a node ran out of memory", 60.0),
    "info": (OK, "", 60.0),
    "noise": (OK, "", 120.0),
    # The program ends well and leaves a child behind that holds its output open; a launcher may wait for that.
    "orphan": ((OK, TIMEOUT), "", 3.0),
}

ENDS = ("hang", "stubborn_child", "segfault", "killed", "partial", "wrong_exit_1", "noise", "info", "orphan")
"""Faults that depend on the launcher: exit codes, timeouts, leftover processes. The others differ in output only."""

LOST = {"slurm": "node_lost", "mpirun": "node_lost_mpirun", "local": "node_lost_ssh"}
"""Launcher -> fault with the message of a lost node; ssh prints its own on this machine."""


@contextmanager
def local():
    yield LocalLauncher(grace_s=GRACE_S), 1


@contextmanager
def mpirun():
    if shutil.which("mpirun") is None:
        pytest.skip("there is no mpirun here")
    launcher = MpirunLauncher(
        flavour=ask_mpi_flavour("mpirun", environ=os.environ),
        shape=JobShape(nodes=1, processes_per_node=2),
        as_root=os.geteuid() == 0,
        grace_s=GRACE_S,
    )
    yield launcher, 2


@contextmanager
def slurm():
    sys.path.insert(0, str(HERE))
    try:
        from slurm.cluster import missing_programs, started_cluster
    finally:
        sys.path.remove(str(HERE))
    if missing := missing_programs():
        pytest.skip(f"Slurm is not installed here: {', '.join(missing)}")
    with started_cluster() as cluster, cluster.allocation(nodes=2) as environment:
        launcher = SlurmLauncher(
            shape=JobShape(nodes=2, processes_per_node=1),
            allocation=read_allocation(environment),
            environment=environment,
            grace_s=GRACE_S,
        )
        yield launcher, 2


PLACES = {"local": local, "mpirun": mpirun, "slurm": slurm}


@pytest.fixture(
    scope="module",
    params=["local", *(pytest.param(name, marks=pytest.mark.thorough) for name in ("mpirun", "slurm"))],
)
def place_name(request):
    return request.param


@pytest.fixture(scope="module")
def place(place_name):
    """A launcher and how many processes it starts."""
    with PLACES[place_name]() as found:
        yield found


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("build")
    FAKES["install"](folder)
    return folder


@pytest.fixture(scope="module")
def features(place, programs):
    return detect(programs, run=ask_through(place[0]))


@pytest.fixture
def measure(place, programs, features, tmp_path):
    """Launch once under a fault; give the result and the word that its processes carry."""
    launcher, processes = place

    def once(fault, timeout_s):
        word = f"NCCLT_TEST_WORD={uuid.uuid4().hex}"
        name, value = word.split("=")
        runner = LaunchedRunner(
            benchmark=NcclTests(folder=programs, features=features, processes=processes),
            launcher=launcher,
            cluster=sample_cluster("here", nodes=1),
            variables=lambda _setting: {"STAND_IN": fault, name: value},
            timeouts=Timeouts(start_s=timeout_s),
            scratch=tmp_path,
            scratch_is_shared=False,
        )
        messages = [
            Message(collective=Collective.ALL_REDUCE, dtype="float32", size_bytes=size, group_size=max(processes, 2))
            for size in (1 << 18, 1 << 20, 1 << 22)
        ]
        return runner.measure(DEFAULT, messages, repeat=0), word

    return once


def test_a_fault_has_its_outcome_and_leaves_nothing(measure, place_name, subtests):
    for fault in FAULTS if place_name == "local" else ENDS:
        with subtests.test(fault):
            check_fault(measure, fault)


def check_fault(measure, fault):
    outcomes, words, timeout_s = FAULTS[fault]

    result, word = measure(fault, timeout_s)

    assert LEFTOVERS["carrying"](word) == []
    assert result.outcome in (outcomes if isinstance(outcomes, tuple) else (outcomes,)), result.detail
    if result.outcome is Outcome.OK:
        assert (result.detail, len(result.measurements)) == ("", 3)
    else:
        assert result.detail.startswith(words), result.detail
        assert len(result.detail.splitlines()) <= 20
        assert "verysecret" not in result.detail
    if fault == "stubborn_child":
        assert "CHILD" in result.detail, "it was not deaf yet when it was ended"


def test_a_lost_node_is_no_outcome_and_leaves_nothing(measure, place_name, monkeypatch):
    """In the words of this launcher."""
    word = uuid.uuid4().hex
    monkeypatch.setattr(uuid, "uuid4", lambda: uuid.UUID(word))
    with pytest.raises(NodesLostError, match=r"was lost|a node failed"):
        measure(LOST[place_name], 60.0)
    assert LEFTOVERS["carrying"](f"NCCLT_TEST_WORD={word}") == []


def test_the_programs_are_found_out_where_they_run(features):
    """By their usage, asked for through the launcher."""
    assert (features.json, features.cycles, features.per_iteration) == (True, True, True)
