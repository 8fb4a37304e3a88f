"""The PyTorch benchmark with real ranks over gloo: every collective, every kind of group, and all that goes wrong."""

import multiprocessing
import os
import runpy
import shutil
import sys
import tempfile
from multiprocessing import forkserver
from pathlib import Path

import pytest
from ports import free_port
from program import run_program

from ncclt.core.message import DTYPE_SIZES, Collective, Message
from ncclt.errors import BenchmarkError
from ncclt.launch.local import LocalLauncher
from ncclt.measure.benchmarks.benchmark import CommandOutput
from ncclt.measure.benchmarks.torch_collectives import TorchCollectives, parse_result

pytest.importorskip("torch.distributed")
FAKES = Path(__file__).parents[1] / "fakes"
FAULTS = FAKES / "torch_faults"
FORKS, RANK = multiprocessing.get_context("forkserver"), str(FAKES / "torch_rank.py")
PATIENCE_S = 240
"""A busy machine of two cores may need a minute to start four ranks."""


def _message(collective="all_reduce", dtype="float32", size_bytes=40_000, group_size=2, spans_nodes=False):
    return Message(
        collective=Collective(collective),
        dtype=dtype,
        size_bytes=size_bytes,
        group_size=group_size,
        spans_nodes=spans_nodes,
    )


def _environment(**more):
    left_out = ("NCCL_", "SLURM_", "OMPI_", "PMI_", "TORCH_FAULT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_")
    return {k: v for k, v in os.environ.items() if not k.startswith(left_out)} | {"OMP_NUM_THREADS": "1"} | more


@pytest.fixture(scope="module", autouse=True)
def _loaded():
    """Start the process that ranks are forked from; it ends with this one, which then removes its folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", "/tmp")  # that of the session, or of pytest, is gone by then
        patch.setenv("OMP_NUM_THREADS", "1")
        FORKS.set_forkserver_preload(["pytest", "torch.distributed"])
        forkserver.ensure_running()


def _measure(
    benchmark, messages, *, folder=None, world_size=2, per_node=2, started=None, of_rank=None, copies=None, **variables
):
    """Start the ranks as torchrun would, without torchrun's own second; return the command and what it gave."""
    (command,) = benchmark.commands(messages, folder=folder)
    argv = [(copies or {}).get(word, word) for word in command.argv]
    port = str(free_port())
    with tempfile.TemporaryDirectory() as said:
        ranks = []
        for rank in range(world_size if started is None else started):
            environ = _environment(
                **variables,
                RANK=str(rank),
                WORLD_SIZE=str(world_size),
                LOCAL_RANK=str(rank % per_node),
                GROUP_RANK=str(rank // per_node),
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=port,
                **(of_rank or {}).get(rank, {}),
            )
            files = {name: f"{said}/{rank}.{name}" for name in ("out", "err")}
            given = {"GIVEN": {"argv": argv[1:], "environ": environ, **files}}
            ranks.append(FORKS.Process(target=runpy.run_path, args=(RANK,), kwargs={"init_globals": given}))
        try:
            for rank in ranks:
                rank.start()
            ranks[0].join(PATIENCE_S)
            for rank in ranks[1:]:
                if "hang" in variables.get("TORCH_FAULT", ""):
                    rank.kill()
                rank.join(PATIENCE_S)
            codes = [rank.exitcode for rank in ranks]
        finally:
            for rank in ranks:
                if rank.is_alive():
                    rank.kill()
                    rank.join()
        assert None not in codes, f"a rank did not end: {codes}"
        stdout, stderr = (
            "".join(Path(f"{said}/{rank}.{name}").read_text() for rank in range(len(ranks))) for name in ("out", "err")
        )
    return command, CommandOutput(exit_code=max(map(abs, codes)), stdout=stdout, stderr=stderr)


def _refusal(benchmark, messages, **options):
    command, output = _measure(benchmark, messages, **options)
    assert output.exit_code != 0
    with pytest.raises(BenchmarkError) as caught:
        benchmark.read(command, output)
    return caught.value.message


QUICK = TorchCollectives(backend="gloo", budget_s=0.01, timeout_s=PATIENCE_S / 4)


def test_torchrun_and_a_result_file(tmp_path):
    """The way of `--launcher torchrun`: the result is a file, and nothing of it is printed."""
    messages = [_message(size_bytes=16_931_912), _message(size_bytes=4_228_000)]
    benchmark = TorchCollectives(backend="gloo", budget_s=0.2, timeout_s=60)
    (command,) = benchmark.commands(messages, folder=tmp_path)
    launcher = LocalLauncher(environment=_environment())
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--no-python")
    plan = launcher.plan((*torchrun, *command.argv), variables=dict(command.variables), timeout_s=PATIENCE_S)

    launch = launcher.run(plan)

    assert launch.exit_code == 0, launch.stderr
    assert "NCCLT-RESULT" not in launch.stdout
    assert [file.name for file in tmp_path.iterdir()] == [command.output_file.name]
    reading = benchmark.read(command, CommandOutput(exit_code=0, stdout="", stderr=""))
    assert tuple(m.message for m in reading.measurements) == tuple(messages)
    assert not reading.is_wrong
    assert all(8 <= len(m.samples_us) <= 256 and m.wrong == 0 for m in reading.measurements)
    # 17 MB through memory take 100 µs at the very least.
    assert all(sample > 100 for sample in reading.measurements[0].samples_us)


def test_a_message_is_sampled_no_longer_than_the_default_makes_worthwhile(tmp_path):
    """One is slower than anybody wants it and outlasts the budget at its first batch; the other one is fast enough."""
    slow, fast = _message(size_bytes=4_228_000), _message(size_bytes=4_000)
    patient = TorchCollectives(backend="gloo", budget_s=0.001, timeout_s=PATIENCE_S / 4)

    command, output = _measure(patient.paced({slow: 1.0, fast: 1e9}), [slow, fast], folder=tmp_path)

    assert output.exit_code == 0, output.stderr
    few, many = patient.read(command, output).measurements
    assert (few.message, len(few.samples_us), few.wrong) == (slow, 2, 0)
    assert (many.message, many.wrong) == (fast, 0)
    assert len(many.samples_us) >= 8


def test_every_collective_dtype_and_kind_of_group(tmp_path):
    """Four ranks on two nodes, beside a matrix product: every element is right, and each kind of group exists."""
    kinds = [{"group_size": 4, "spans_nodes": True}, {"group_size": 2}, {"group_size": 2, "spans_nodes": True}]
    messages = [_message(c, size_bytes=20_004, **kind) for c in Collective for kind in kinds]
    messages += [_message(c, dtype, 30_011, 4, True) for c in ("all_reduce", "all_to_all") for dtype in DTYPE_SIZES]
    messages += [_message("reduce_scatter", "bfloat16", 6), _message("all_gather", "int8", 1), _message("send_recv")]
    messages = list(dict.fromkeys(messages))
    benchmark = TorchCollectives(backend="gloo", budget_s=0.01, timeout_s=PATIENCE_S / 2, beside="gemm")

    command, output = _measure(benchmark, messages, folder=tmp_path, world_size=4, per_node=2)

    assert output.exit_code == 0, output.stderr
    reading = benchmark.read(command, output)
    assert [m.message for m in reading.measurements] == messages
    assert not reading.is_wrong
    environment = parse_result(command.output_file.read_text()).environment
    assert environment["nodes"] == [[0, 1], [2, 3]]
    assert environment["backend"] == "gloo"
    assert len(environment["hosts"]) == 4


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="Open MPI is not installed")
def test_mpirun_and_standard_output():
    """Open MPI's variables are understood too, and the result is found in what mpirun forwards."""
    (command,) = QUICK.commands([_message()], folder=None)
    mpirun = ["mpirun", "-np", "2", "--oversubscribe", "--allow-run-as-root"]
    exported = ["-x", "MASTER_ADDR=127.0.0.1", "-x", f"MASTER_PORT={free_port()!s}", "-x", "OMP_NUM_THREADS"]

    done = run_program([*mpirun, *exported, *command.argv], env=_environment())

    assert done.returncode == 0, done.stderr
    reading = QUICK.read(command, CommandOutput(exit_code=0, stdout=done.stdout, stderr=done.stderr))
    assert reading.measurements[0].wrong == 0


def test_the_slowest_rank_counts():
    """The root of a broadcast is done at once; the job waits for the rank that sleeps 20 ms."""
    command, output = _measure(QUICK, [_message("broadcast")], PYTHONPATH=str(FAULTS), TORCH_FAULT="slow:1:1")

    (measurement,) = QUICK.read(command, output).measurements
    assert min(measurement.samples_us) >= 20_000


def test_equal_launches_receive_the_same_bits_and_a_fault_shows():
    both = [_message("all_gather"), _message("all_reduce")]
    first, again = ([m.bits for m in QUICK.read(*_measure(QUICK, both)).measurements] for _ in range(2))
    assert first == again
    assert len({*first}) == 2
    broken = _measure(QUICK, both[1:], PYTHONPATH=str(FAULTS), TORCH_FAULT="wrong:1:1")
    assert QUICK.read(*broken).measurements[0].bits != first[1]


@pytest.mark.parametrize(("first", "wrong"), [(1, 2), (10, 1)])
def test_wrong_data_are_counted(first, wrong):
    """One element in one rank is found in the check before the timing and in the one after it."""
    fault = f"wrong:1:{first}"
    command, output = _measure(QUICK, [_message()], PYTHONPATH=str(FAULTS), TORCH_FAULT=fault)

    reading = QUICK.read(command, output)
    assert output.exit_code == 0
    assert reading.is_wrong
    assert [m.wrong for m in reading.measurements] == [wrong]


def test_an_error_in_one_rank_is_the_reason():
    """The other rank's lost connection is not the reported cause, and wrong data before it are worse than the error."""
    both = [_message("all_gather"), _message("all_reduce")]
    message = _refusal(QUICK, both, PYTHONPATH=str(FAULTS), TORCH_FAULT="raise:1:3")

    assert "rank 1 on " in message
    assert "all_reduce:float32:10000:2: RuntimeError: the cable is gone" in message


def test_a_killed_rank_ends_the_other():
    """SIGKILL leaves no word; the rank that is left notices, says so and ends by itself."""
    message = _refusal(QUICK, [_message()], PYTHONPATH=str(FAULTS), TORCH_FAULT="kill:1:8")

    assert "rank 0 on " in message
    assert "all_reduce:float32:10000:2" in message


def test_a_rank_that_hangs_is_waited_for_no_longer_than_asked():
    """The rank that waits in a collective ends after the timeout, with a reason."""
    patient = TorchCollectives(backend="gloo", budget_s=0.01, timeout_s=4)
    message = _refusal(patient, [_message()], PYTHONPATH=str(FAULTS), TORCH_FAULT="hang:1:8")

    assert "rank 0 on " in message


def test_a_rank_that_never_comes_is_waited_for_no_longer_than_asked():
    """One of two ranks was not started: the other does not wait for ever."""
    patient = TorchCollectives(backend="gloo", budget_s=0.01, timeout_s=3)

    assert "rank 0 on " in _refusal(patient, [_message()], started=1)


def test_variables_that_differ_are_found_before_anything_is_sent():
    """NCCL would hang; interfaces may differ."""
    ranks = {0: {"NCCL_SOCKET_IFNAME": "eth0", "NCCL_ALGO": "Ring"}, 1: {"NCCL_SOCKET_IFNAME": "eth1"}}

    message = _refusal(QUICK, [_message()], of_rank=ranks)

    assert "NCCL_ALGO is Ring on rank 0 and unset on rank 1" in message


@pytest.mark.skipif("__import__('torch').cuda.is_available()", reason="there is a GPU here")
def test_nccl_without_gpus_is_refused():
    """The reason is said, and not a trace of Python calls."""
    message = _refusal(TorchCollectives(timeout_s=PATIENCE_S), [_message()])

    assert "built without NCCL" in message or "PyTorch sees 0 GPUs" in message


@pytest.mark.thorough
def test_a_rank_killed_under_torchrun_is_named():
    """torchrun's table says which rank had which signal."""
    (command,) = QUICK.commands([_message()], folder=None)
    launcher = LocalLauncher(environment=_environment(PYTHONPATH=str(FAULTS), TORCH_FAULT="kill:1:8"))
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--no-python")
    launch = launcher.run(launcher.plan((*torchrun, *command.argv), variables={}, timeout_s=PATIENCE_S))

    assert launch.exit_code != 0
    with pytest.raises(BenchmarkError, match="rank 1 was ended by SIGKILL"):
        QUICK.read(command, CommandOutput(exit_code=launch.exit_code, stdout=launch.stdout, stderr=launch.stderr))
