"""Ends of persistent ranks, for each process that can be killed, and the modules that they load."""

import importlib.util
import re
import runpy
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.setting import DEFAULT, Setting
from ncclt.core.trial import Outcome
from ncclt.measure.persistent.session import Controller, session_command
from ncclt.nccl.switching import SwitchCost
from ncclt.nccl.tuner_plugin.build import build, compiler
from ncclt.nccl.tuner_plugin.loaded import LoadedPlugin
from ncclt.nccl.tuner_table import FUNCTIONS

pytest.importorskip("torch.distributed")
free_port = runpy.run_path(str(Path(__file__).parents[1] / "fakes" / "ports.py"))["free_port"]
_spec = importlib.util.spec_from_file_location("persistent", Path(__file__).with_name("test_persistent.py"))
persistent = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(persistent)
BENCHMARK, LEFTOVERS, MESSAGES = persistent.BENCHMARK, persistent.LEFTOVERS, persistent.MESSAGES
PATIENCE_S, STOP = persistent.PATIENCE_S, persistent.STOP
CONTRACTS = str(Path(__file__).parents[1] / "contract")
environment, create_launcher, runner_of = persistent.environment, persistent.create_launcher, persistent.runner_of


@pytest.mark.thorough
def test_kill_ends_a_trial_that_hangs_at_once(tmp_path):
    word = f"killed-{time.monotonic_ns()}"
    runner = runner_of(create_launcher(word, tmp_path))
    raised = []

    def measure():
        try:
            runner.measure(STOP, MESSAGES, repeat=0)
        except KeyboardInterrupt:
            raised.append(True)

    thread = threading.Thread(target=measure)
    thread.start()
    deadline = time.monotonic() + PATIENCE_S
    while not (tmp_path / "1").is_file() and time.monotonic() < deadline:
        time.sleep(0.05)
    runner.kill()
    thread.join(PATIENCE_S)
    assert raised
    assert not LEFTOVERS["soon_gone"](word)
    with pytest.raises(KeyboardInterrupt):
        runner.measure(DEFAULT, MESSAGES, repeat=0)


@pytest.mark.thorough
def test_kill_9_of_ncclt_leaves_nothing(tmp_path):
    word = f"orphaned-{time.monotonic_ns()}"
    program = (
        "import runpy, sys, time\n"
        "from pathlib import Path\n"
        "tests = runpy.run_path(sys.argv[1])\n"
        "runner = tests['runner_of'](tests['create_launcher'](sys.argv[2], Path(sys.argv[3])))\n"
        "print(runner.measure(tests['DEFAULT'], tests['MESSAGES'], repeat=0).outcome, flush=True)\n"
        "time.sleep(600)\n"
    )
    ncclt = subprocess.Popen(
        (sys.executable, "-c", program, persistent.__file__, word, str(tmp_path)),
        env=environment(PYTHONPATH=CONTRACTS),
        stdout=subprocess.PIPE,
    )
    try:
        assert ncclt.stdout.readline() == b"ok\n"
        assert len(LEFTOVERS["carrying"](word)) >= 3
    finally:
        ncclt.kill()
        ncclt.communicate()
    assert not LEFTOVERS["soon_gone"](word, PATIENCE_S)


def started_by_hand(controller_address, token, folder, *, port):
    """Start the ranks without any launcher that could end them."""
    command = session_command(BENCHMARK, controller=controller_address, token=token)
    common = {"WORLD_SIZE": "2", "GROUP_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    processes = []
    for rank in ("0", "1"):
        with (folder / rank).open("wb") as said:
            given = environment(**common, RANK=rank, LOCAL_RANK=rank)
            processes.append(subprocess.Popen(command.argv, env=given, stdout=subprocess.DEVNULL, stderr=said))
    return processes


def test_kill_9_while_ranks_start_leaves_no_token(tmp_path):
    """The reaper removes it: another user could send orders to our ranks with it."""
    (scratch := tmp_path / "scratch").mkdir()
    program = (
        "import runpy, sys\n"
        "from pathlib import Path\n"
        "tests = runpy.run_path(sys.argv[1])\n"
        "sleeping = tests['TorchCollectives'](backend='gloo', python=sys.argv[3])\n"
        "launcher = tests['create_launcher'](sys.argv[2], Path(sys.argv[4]))\n"
        "runner = tests['runner_of'](launcher, benchmark=sleeping, scratch=Path(sys.argv[4], 'scratch'))\n"
        "runner.measure(tests['DEFAULT'], tests['MESSAGES'], repeat=0)\n"
    )
    word = f"starting-{time.monotonic_ns()}"
    (sleeper := tmp_path / "sleeper").write_text("#!/bin/sh\nexec sleep 600\n")
    sleeper.chmod(0o755)
    words = (sys.executable, "-c", program, persistent.__file__, word, str(sleeper), str(tmp_path))
    ncclt = subprocess.Popen(words, env=environment(PYTHONPATH=CONTRACTS))
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not LEFTOVERS["carrying"](word) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert [file.stat().st_mode & 0o777 for file in scratch.rglob("token")] == [0o600]
    finally:
        ncclt.kill()
        ncclt.wait()
    while any(scratch.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert list(scratch.iterdir()) == []
    assert not LEFTOVERS["soon_gone"](word, PATIENCE_S)


def ended(processes):
    try:
        return [process.wait(timeout=PATIENCE_S) for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()


def test_ranks_whose_controller_is_gone_end_by_themselves(tmp_path):
    """As on other machines, where no reaper of ours lives; their reports go with them."""
    (token := tmp_path / "token").write_text("a token")
    with closing(Controller(is_local=True, host="", token=b"a token")) as controller:
        processes = started_by_hand(controller.address, token, tmp_path, port=free_port())
        connection = controller.accept(PATIENCE_S, stopped=lambda: False)
    connection.send({"do": "begin", "table": {"head": "", "bytes": 16480}})
    deadline = time.monotonic() + PATIENCE_S
    while (ready := connection.receive(1.0)) is None and time.monotonic() < deadline:
        pass
    reports = Path(ready["reports"])
    assert reports.is_dir()
    connection.close()
    assert ended(processes) == [1, 0], "what every rank knows fails rank 0 alone"
    assert not reports.exists()
    assert "the controller: the other end has closed the connection" in (tmp_path / "0").read_text()


def test_ranks_with_another_token_are_not_believed_and_do_not_believe(tmp_path):
    (token := tmp_path / "token").write_text("another token")
    with closing(Controller(is_local=True, host="", token=b"a token")) as controller:
        processes = started_by_hand(controller.address, token, tmp_path, port=free_port())
        assert controller.accept(PATIENCE_S, stopped=lambda: any(p.poll() is not None for p in processes)) is None
    assert ended(processes) == [1, 0], "what every rank knows fails rank 0 alone"
    assert "ncclt: rank 0 on " in (tmp_path / "0").read_text()


def tables_of(word):
    """Return the tables of all ranks of a launch, one for each."""
    found = {}
    for process in LEFTOVERS["carrying"](word):
        for link in Path(f"/proc/{process}/fd").iterdir():
            if link.readlink().name.startswith("memfd:ncclt-table"):
                found[process] = str(link)
    return list(found.values())


def test_the_plugin_sees_each_setting_at_its_next_call(tmp_path):
    """The real plugin reads the table of a rank from this process; the ranks' communicators stay as they are."""
    if compiler() is None:
        pytest.skip("no C compiler here: the plugin cannot be built")
    library = build(tmp_path / "libnccl-tuner-ncclt.so")
    folders = set(Path("/dev/shm").glob("ncclt-torch-*"))
    word = f"plugin-{time.monotonic_ns()}"
    runner = runner_of(create_launcher(word, tmp_path), plugin=library)
    ring = Setting(algorithm=Algorithm.RING, protocol=Protocol.LL, channels=4)
    tree = Setting(algorithm=Algorithm.TREE, protocol=Protocol.LL128)
    try:
        assert runner.measure(DEFAULT, MESSAGES, repeat=0).outcome is Outcome.OK
        tables = tables_of(word)
        assert len(tables) == 2
        with LoadedPlugin(library).communicator(ranks=2, nodes=1, environ={"NCCLT_POLICY_SHM": tables[0]}) as comm:
            for setting, cheapest, channels in ((ring, [3], 4), (tree, [1], 0), (DEFAULT, [], 0), (ring, [3], 4)):
                assert runner.measure(setting, MESSAGES, repeat=0).outcome is Outcome.OK
                answer = comm.ask(FUNCTIONS.index("allreduce"), 4096)
                assert ([at for at, cost in enumerate(answer.costs) if cost < 1], answer.channels) == (
                    cheapest,
                    channels,
                )
                assert len({Path(table).read_bytes() for table in tables}) == 1
        assert runner.switches == {SwitchCost.PROCESS: 1, SwitchCost.CALL: 4}
    finally:
        runner.close()
    assert set(Path("/dev/shm").glob("ncclt-torch-*")) <= folders


def test_ranks_without_the_plugin_say_so_before_anything_is_measured(tmp_path):
    """A node that lacks it would choose otherwise than the rest."""
    runner = runner_of(create_launcher("lacking", tmp_path), plugin=Path("/nowhere/libnccl-tuner-ncclt.so"))
    tables = set(Path("/dev/shm").glob("ncclt-torch-*"))
    result = runner.measure(DEFAULT, MESSAGES, repeat=0)
    runner.close()
    assert result.outcome is Outcome.CRASHED
    assert re.search(r"rank [01] on \S+ does not find /nowhere/libnccl-tuner-ncclt.so", result.detail)
    assert set(Path("/dev/shm").glob("ncclt-torch-*")) <= tables
