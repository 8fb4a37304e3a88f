"""The table in shared memory: one writer, many readers, whole tables only."""

import fcntl
import json
import os
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from ncclt.errors import InputError, UsageError
from ncclt.nccl.tuner_plugin.shared_table import MOST_ROWS, VARIABLE
from ncclt.nccl.tuner_table import FUNCTIONS, PluginRow

ALL_REDUCE = FUNCTIONS.index("allreduce")


def watching(plugin, table, **options):
    return plugin.communicator(**{"ranks": 8, "nodes": 2, "environ": {VARIABLE: table.path}, **options})


def row(algorithm="ring", protocol="ll", **more):
    return PluginRow(collective="allreduce", algorithm=algorithm, protocol=protocol, **more)


@pytest.mark.parametrize("api", [3, 4, 5, 6])
def test_a_switch_holds_from_the_next_call_on(plugin, table, api):
    with watching(plugin, table, api=api) as comm:
        assert comm.ask(ALL_REDUCE, 64).costs == [1.0] * 21
        table.publish([row("tree", "simple", channels=4)])
        answer = comm.ask(ALL_REDUCE, 64)
        assert (answer.costs[2] < 1, answer.channels) == (True, 4)
        table.publish([row("ring", "ll128", first_bytes=100, last_bytes=200)])
        assert comm.ask(ALL_REDUCE, 99).costs == comm.ask(ALL_REDUCE, 201).costs == [1.0] * 21
        assert comm.ask(ALL_REDUCE, 100).costs[4] < 1
        assert comm.ask(FUNCTIONS.index("reduce"), 100).costs == [1.0] * 21
        table.publish([])
        assert comm.ask(ALL_REDUCE, 150).costs == [1.0] * 21


def test_the_first_row_that_fits_the_communicator_counts_instead_of_the_policy(plugin, table, tmp_path):
    (tmp_path / "policy").write_text("allreduce,0,100,tree,ll,2,-1,-1\n")
    environ = {VARIABLE: table.path, "NCCLT_POLICY": str(tmp_path / "policy")}
    with watching(plugin, table, environ=environ) as comm:
        assert comm.ask(ALL_REDUCE, 64).costs == [1.0] * 21
        table.publish(
            [row("tree", nodes=4), row("nvls", "simple", ranks=4), row("ring", ranks=8, nodes=2), row("tree")]
        )
        assert comm.ask(ALL_REDUCE, 2**63).costs[3] < 1


@pytest.mark.parametrize("spoil", [8, 16, 20])
def test_what_is_no_shared_table_fails_init(plugin, table, spoil):
    table.publish([row()])
    with Path(table.path).open("r+b") as file:
        spoilt = file.read()[spoil] ^ 1
        file.seek(spoil)
        file.write(bytes([spoilt]))
    with pytest.raises(InputError, match="no shared table of format 1"):
        watching(plugin, table).__enter__()


def test_memory_that_others_can_write_fails_init(plugin, table):
    Path(table.path).chmod(0o602)
    with pytest.raises(InputError, match="other users can write"):
        watching(plugin, table).__enter__()


@pytest.mark.parametrize(("length", "seals", "said"), [(-1, fcntl.F_SEAL_SHRINK, "too short"), (0, 0, "cut short")])
def test_memory_that_is_short_or_may_become_so_fails_init(plugin, table, length, seals, said):
    file = os.memfd_create("other", os.MFD_ALLOW_SEALING)
    try:
        content = Path(table.path).read_bytes()
        os.write(file, content[: len(content) + length])
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, seals)
        os.fchmod(file, 0o600)
        with pytest.raises(InputError, match=said):
            watching(plugin, table, environ={VARIABLE: f"/proc/self/fd/{file}"}).__enter__()
    finally:
        os.close(file)


CUT = """
import os, sys
from pathlib import Path
from ncclt.nccl.tuner_plugin.loaded import LoadedPlugin
def truncate(path):
    with open(path, "r+b") as file:
        file.truncate(0)
def replace(path):
    other = path + ".other"
    with open(other, "wb") as file:
        file.write(b"x")
    os.replace(other, path)
with LoadedPlugin(Path(sys.argv[1])).communicator(ranks=8, nodes=2) as comm:
    before = comm.ask(4, 64)
    try:
        {"truncate": truncate, "replace": replace, "delete": os.unlink}[sys.argv[2]](os.environ["NCCLT_POLICY_SHM"])
    except OSError as error:
        print(type(error).__name__)
    after = comm.ask(4, 64)
    print(before.costs == after.costs, before.channels == after.channels, comm.log[0])
"""


@pytest.mark.parametrize("what", ["truncate", "replace", "delete"])
@pytest.mark.parametrize("memory", [True, False], ids=["sealed", "file"])
def test_whatever_becomes_of_the_table_the_rank_lives(run_code, table, tmp_path, what, memory):
    """A file that is cut short while it is mapped ends its reader with SIGBUS, at its next call."""
    table.publish([row(channels=3)])
    path = table.path.replace("self", str(os.getpid()))
    if not memory:
        (tmp_path / "table").write_bytes(Path(path).read_bytes())
        path = str(tmp_path / "table")
    done = run_code(CUT, what, **{VARIABLE: path})
    if not memory:
        assert (done.returncode, done.stdout) == (1, "")
        assert "no memory sealed against that" in done.stderr
        return
    assert done.returncode == 0, (done.returncode, done.stderr)
    assert "True True" in done.stdout
    assert "table in shared memory" in done.stdout


def test_a_half_written_table_is_never_used(plugin, table):
    """The generation is announced, and the rows do not fit their checksum."""
    table.publish([row()])
    with Path(table.path).open("r+b") as file:
        file.seek(32 + 8224 + 32 + 25)  # slot 1, first row, its algorithm
        file.write(b"\x00")
    with watching(plugin, table) as comm:
        assert comm.ask(ALL_REDUCE, 64).costs == [1.0] * 21


def read_while_switching(plugin, path, found, over):
    """Ask until it is over; every answer must be one whole table: channels fit the algorithm."""
    with plugin.communicator(ranks=8, nodes=2, environ={VARIABLE: path}) as comm:
        while not over.is_set():
            answer = comm.ask(ALL_REDUCE, 64)
            cheap = [at for at, cost in enumerate(answer.costs) if cost < 1]
            found.add((tuple(cheap), answer.channels))


# Tables of many rows, of which the last one fits: a reader takes its time. Three of them, for there are two slots: so
# each slot gets another table than it had.
NOT_YET = [row("tree", nodes=99)] * (MOST_ROWS - 1)
TABLES = tuple(
    [*NOT_YET, row(*pair, channels=number)]
    for number, pair in enumerate([("tree", "ll"), ("ring", "simple"), ("ring", "ll")], 1)
)
PUBLISHED = {((0,), 1), ((5,), 2), ((3,), 3)}
WHOLE = {((), 0)} | PUBLISHED
LEAST_SWITCHES = 500
PATIENT_S = 60.0


# Another process: it asks whenever a line comes in, as often as the line says, and tells what it saw.
RANK = """
import json, os, sys
from pathlib import Path
from ncclt.nccl.tuner_plugin.loaded import LoadedPlugin
from ncclt.nccl.tuner_table import FUNCTIONS
with LoadedPlugin(Path(sys.argv[1])).communicator(ranks=8, nodes=2) as comm:
    for line in sys.stdin:
        found = set()
        for _ in range(int(line)):
            answer = comm.ask(4, 64)
            found.add((tuple(at for at, cost in enumerate(answer.costs) if cost < 1), answer.channels))
        print(json.dumps(sorted(found)), flush=True)
"""


@contextmanager
def rank(library, table):
    environ = {**os.environ, VARIABLE: table.path.replace("self", str(os.getpid()))}
    command = [sys.executable, "-c", RANK, str(library)]
    with subprocess.Popen(
        command, env=environ, text=True, bufsize=1, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            yield process
        finally:
            process.stdin.close()
            process.wait(timeout=120)


def ask(process, calls):
    process.stdin.write(f"{calls}\n")


def answers(process):
    return {(tuple(cheap), channels) for cheap, channels in json.loads(process.stdout.readline())}


def listen_while_switching(process, found, over):
    while not over.is_set():
        ask(process, 1000)
        found |= answers(process)


def test_threads_and_processes_see_whole_tables_only(library, plugin, table):
    """It goes on until all have seen all tables: a busy machine may leave each of them alone for a while."""
    found, elsewhere, over = set(), set(), threading.Event()
    with rank(library, table) as process:
        here = (read_while_switching, (plugin, table.path, found, over))
        there = (listen_while_switching, (process, elsewhere, over))
        readers = [threading.Thread(target=target, args=arguments) for target, arguments in (here, here, there)]
        for reader in readers:
            reader.start()
        deadline_s, switches = time.monotonic() + PATIENT_S, 0
        try:
            while time.monotonic() < deadline_s and (
                switches < LEAST_SWITCHES or not (found >= PUBLISHED and elsewhere >= PUBLISHED)
            ):
                table.publish(TABLES[switches % 3])
                switches += 1
        finally:
            over.set()
            for reader in readers:
                reader.join()

    assert PUBLISHED <= found <= WHOLE
    assert PUBLISHED <= elsewhere <= WHOLE


def test_all_processes_agree_behind_a_barrier(library, table):
    """As the persistent worker uses it: publish, let every rank know, one collective, wait for all."""
    with rank(library, table) as first, rank(library, table) as second:
        for turn in range(1, 11):
            table.publish([row(channels=turn)])
            for process in (first, second):
                ask(process, 1)
            assert answers(first) == answers(second) == {((3,), turn)}


@pytest.mark.parametrize(
    "rows",
    [
        *(
            [PluginRow(**{"collective": "allreduce", "algorithm": "ring", "protocol": "ll", **change})]
            for change in (
                {"collective": "all_reduce"},
                {"algorithm": "Ring"},
                {"protocol": "ll64"},
                {"channels": 300},
                {"first_bytes": -1},
            )
        ),
        [row()] * (MOST_ROWS + 1),
    ],
)
def test_rows_that_no_table_holds_are_refused_and_leave_it_as_it_was(table, rows):
    table.publish([row()])
    before = Path(table.path).read_bytes()
    with pytest.raises(UsageError):
        table.publish(rows)
    assert Path(table.path).read_bytes() == before
