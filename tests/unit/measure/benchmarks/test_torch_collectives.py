"""The command of the PyTorch benchmark, and how its answers are taken."""

import itertools
import json

import made_workloads
import pytest

from ncclt.core.message import DTYPE_SIZES, Collective
from ncclt.errors import BenchmarkError, UsageError
from ncclt.measure.benchmarks.benchmark import CommandOutput
from ncclt.measure.benchmarks.torch_collectives import (
    CARRIERS,
    MEASURING,
    WORKER,
    TorchCollectives,
    worker_word,
)
from ncclt.measure.benchmarks.torch_worker import ncclt_torch_measuring, ncclt_torch_worker


def _message(collective="all_reduce", dtype="float32", size_bytes=4096, group_size=8, spans_nodes=False):
    return made_workloads.message(size_bytes, Collective(collective), dtype=dtype, group=group_size, spans=spans_nodes)


def _document(messages, **changes):
    rows = [{"message": worker_word(m), "samples_us": [5.0, 4.0, 6.0], "wrong": 0, "bits": "ab12"} for m in messages]
    return {"version": 1, "environment": {}, "beside": {}, "measurements": rows} | changes


def _read(benchmark, messages, document, folder, *, stderr="", exit_code=0):
    (command,) = benchmark.commands(messages, folder=folder)
    command.output_file.write_text(json.dumps(document))
    return benchmark.read(command, CommandOutput(exit_code=exit_code, stdout="", stderr=stderr))


def test_the_command_is_a_fixed_line(tmp_path):
    """One command for all messages, in their order; nothing in it needs a shell's quotes."""
    messages = [_message("all_gather", "bfloat16", 1 << 20, 8, True), _message()]
    benchmark = TorchCollectives(backend="gloo", python="/opt/python", budget_s=0.25, timeout_s=60, beside="gemm")

    (command,) = benchmark.commands(messages, folder=tmp_path)

    assert command.argv == (
        *("/opt/python", str(WORKER), "--measuring", str(MEASURING), "--backend", "gloo"),
        *("--budget-s", "0.25", "--timeout-s", "60", "--beside", "gemm"),
        *("--output", str(tmp_path / "torch_collectives.json")),
        *("--messages", "all_gather:bfloat16:65536:8:across", "all_reduce:float32:1024:8"),
    )
    assert command.messages == tuple(messages)
    assert command.files == (WORKER, MEASURING)
    assert all(str(file) in command.argv and file.is_file() for file in command.files)
    assert command.variables == (("OMP_NUM_THREADS", "1"),)


def test_the_worker_takes_the_command(tmp_path):
    """Both sides know the same options and words."""
    messages = [_message(c, d, spans_nodes=across) for c in Collective for d in DTYPE_SIZES for across in (True, False)]
    (command,) = TorchCollectives(beside="gemm").commands(messages, folder=tmp_path)

    options = ncclt_torch_worker.parse(command.argv[2:])

    assert (options.backend, options.beside, options.output) == ("nccl", "gemm", command.output_file)
    assert options.measuring == ncclt_torch_worker.parse(["--messages", "x"]).measuring == MEASURING
    for message, word in zip(messages, options.messages, strict=True):
        parsed = ncclt_torch_measuring.MeasuredMessage.parse(word)
        assert (parsed.collective, parsed.group_size, parsed.across) == (message.collective, 8, message.spans_nodes)


def test_sizes_become_elements(subtests):
    """Whole elements, equal parts, never less than asked for; the carrier sends as many bytes."""
    cases = [
        ("all_reduce", "float32", 16_931_912, "all_reduce:float32:4232978:8"),
        ("all_reduce", "float32", 10, "all_reduce:float32:3:8"),
        ("broadcast", "float64", 1, "broadcast:float64:1:8"),
        ("send_recv", "float16", 4096, "send_recv:float16:2048:8"),
        ("all_gather", "float32", 4096, "all_gather:float32:128:8"),
        ("all_gather", "float32", 4097, "all_gather:float32:129:8"),
        ("reduce_scatter", "bfloat16", 1, "reduce_scatter:bfloat16:1:8"),
        ("all_to_all", "int8", 65, "all_to_all:int8:9:8"),
        ("all_reduce", "bool", 4096, "all_reduce:uint8:4096:8"),
        ("all_reduce", "float8_e4m3", 4096, "all_reduce:uint8:4096:8"),
        ("all_gather", "int16", 4098, "all_gather:int8:514:8"),
        ("reduce", "uint64", 4096, "reduce:int64:512:8"),
        ("reduce", "uint32", 4096, "reduce:int32:1024:8"),
    ]
    for collective, dtype, size_bytes, word in cases:
        with subtests.test(collective=collective):
            assert worker_word(_message(collective, dtype, size_bytes)) == word


def test_every_size_of_whole_elements_is_sent_exactly(subtests, tmp_path):
    """Also where the part of a rank is no multiple of 16 bytes, the case that decides whether NCCL copies vectors."""
    for collective, dtype in itertools.product(Collective, DTYPE_SIZES):
        with subtests.test(collective=collective, dtype=dtype):
            parts = 8 if collective.has_rank_parts else 1
            message = _message(collective, dtype, 8_388_617 * DTYPE_SIZES[dtype] * parts)
            word = ncclt_torch_measuring.MeasuredMessage.parse(worker_word(message))
            assert word.elements * DTYPE_SIZES[word.dtype] * parts == message.size_bytes
            reading = _read(TorchCollectives(), [message], _document([message]), tmp_path)
            assert reading.measurements[0].measured_bytes is None
            assert reading.measurements[0].bits == "ab12"
    (rounded,) = _read(
        TorchCollectives(), [odd := _message("all_gather", size_bytes=4097)], _document([odd]), tmp_path
    ).measurements
    assert rounded.measured_bytes == 4128


def test_carriers_are_dtypes_that_divide():
    """An element is carried by a whole number of others, and those need no carrier."""
    for dtype, carrier in CARRIERS.items():
        assert DTYPE_SIZES[dtype] % DTYPE_SIZES[carrier] == 0
        assert carrier not in CARRIERS


@pytest.mark.parametrize("group_size", [0, 1])
def test_a_group_without_peers_is_refused(group_size):
    """Nothing would be sent."""
    with pytest.raises(UsageError, match="at least 2 ranks"):
        TorchCollectives().commands([_message(group_size=group_size)], folder=None)


@pytest.mark.parametrize("options", [{"backend": "mpi"}, {"beside": "conv"}])
def test_options_without_sense_are_refused(options):
    """Before anything is launched."""
    with pytest.raises(UsageError):
        TorchCollectives(**options)


def test_the_worker_is_told_when_a_message_has_been_sampled_enough():
    """One number per message, 0 where nothing is known; without any the command is as it always was."""
    messages = [_message(size_bytes=size) for size in (4096, 8192)]
    benchmark = TorchCollectives(backend="gloo")
    (plain,), (told,) = (
        b.commands(messages, folder=None) for b in (benchmark, benchmark.paced({messages[1]: 1234.5678, _message(): 0}))
    )

    assert "--enough-us" not in plain.argv
    at = told.argv.index("--enough-us")
    assert told.argv[at + 1 : at + 4] == ("0", "1234.57", "--messages")
    assert told.argv[:at] + told.argv[at + 3 :] == plain.argv
    options = ncclt_torch_worker.parse(told.argv[2:])
    assert (options.enough_us, len(options.messages)) == ([0.0, 1234.57], 2)


def test_the_worker_refuses_limits_that_do_not_belong_to_its_messages(capsys):
    """It is a broken command line, not something to guess about."""
    with pytest.raises(SystemExit):
        ncclt_torch_worker.parse(["--enough-us", "1", "2", "--messages", "all_reduce:float32:7:8"])
    assert "one number for each message" in capsys.readouterr().err


def test_no_message_is_no_command():
    """Nothing is started to measure nothing."""
    assert TorchCollectives().commands([], folder=None) == ()


def test_a_good_result_is_read(tmp_path):
    """All samples, in order; two dtypes with the same carrier are two messages."""
    messages = [_message(dtype="bool"), _message(dtype="uint8"), _message()]

    reading = _read(TorchCollectives(), messages, _document(messages), tmp_path)

    assert [m.message for m in reading.measurements] == messages
    assert {m.samples_us for m in reading.measurements} == {(5.0, 4.0, 6.0)}
    assert not reading.is_wrong


def test_wrong_elements_make_the_reading_wrong(tmp_path):
    """The times are kept, for people."""
    document = _document([_message()])
    document["measurements"][0]["wrong"] = 3

    reading = _read(TorchCollectives(), [_message()], document, tmp_path)

    assert reading.is_wrong
    assert reading.measurements[0].wrong == 3


def test_an_early_end_is_an_error_with_the_first_reason(tmp_path):
    """Rank 0's own words are the consequence, those of the rank that failed first are the cause."""
    document = _document([_message()], error="RuntimeError: Connection reset by peer")
    stderr = (
        "ncclt: rank 0 on a failed after 7.000002 s: RuntimeError: Connection reset by peer\n"
        "[1,3]<stderr>:ncclt: rank 3 on b failed after 6.999999 s: no memory\n"
    )

    with pytest.raises(BenchmarkError, match=r"rank 3 on b: no memory$"):
        _read(TorchCollectives(), [_message()], document, tmp_path, stderr=stderr, exit_code=1)


def test_wrong_data_before_an_early_end_are_wrong_data(tmp_path):
    """Of the two the wrong data are worse."""
    messages = [_message(), _message("broadcast")]
    document = _document(messages[:1], error="RuntimeError: gone")
    document["measurements"][0]["wrong"] = 5

    reading = _read(TorchCollectives(), messages, document, tmp_path, exit_code=1)

    assert reading.measurements == ()
    assert reading.failed_check == "5 elements came out wrong, then: RuntimeError: gone"


@pytest.mark.parametrize(
    ("benchmark", "changes", "reason"),
    [
        (TorchCollectives(), {"measurements": []}, "no time for all_reduce 4 KiB float32"),
        (TorchCollectives(), {"version": 2}, "version 2"),
        (TorchCollectives(), {"beside": {"gemm": 8}}, "nothing should have run beside the messages, and gemm did"),
        (TorchCollectives(beside="gemm"), {}, "gemm should have run beside the messages, and nothing did"),
        (TorchCollectives(), {"measurements": None}, "cannot be read"),
    ],
)
def test_a_result_that_does_not_answer_the_question_is_an_error(benchmark, changes, reason, tmp_path):
    """No time is made up, and none is taken for another message."""
    with pytest.raises(BenchmarkError, match=reason) as caught:
        _read(benchmark, [_message()], _document([_message()], **changes), tmp_path)
    assert caught.value.hint


def test_times_of_other_messages_are_an_error(tmp_path):
    """More rows than messages mean that something else was measured."""
    document = _document([_message(), _message("broadcast")])

    with pytest.raises(BenchmarkError, match="other messages"):
        _read(TorchCollectives(), [_message()], document, tmp_path)
