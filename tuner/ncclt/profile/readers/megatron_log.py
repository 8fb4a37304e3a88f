"""Logs of Megatron-LM, Megatron Core and NeMo: the gradient buckets, of which each is sent once per step.

With the distributed optimizer a bucket is one reduce_scatter of gradients and one all_gather of parameters, without it
one all_reduce. Tensor, pipeline and expert parallelism do not show.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ncclt.core.message import Collective, Message, parse_dtype
from ncclt.errors import InputError, TraceError
from ncclt.profile.c10d import Tensor
from ncclt.profile.nccl_calls import build_message
from ncclt.profile.numbers import MOST_RANKS, parse_int
from ncclt.profile.reader import Call, Reader, Source
from ncclt.profile.readers.nccl_log import LOGGED_CALL
from ncclt.profile.source import Document, ranked_lines
from ncclt.profile.workload_builder import check_bounded, check_ranks_once

_COUNT = re.compile(rb"Number of buckets for gradient all-reduce / reduce-scatter: (\d{1,7})")

_BUCKET = re.compile(
    rb"Params for bucket \d{1,7} \((\d{1,15}) elements(?:, (\d{1,15}) padded size)?"
    rb"(?:, \d{1,9} param\(s\) with extra main_grads)?(?:, dtype torch\.(\w{1,24}))?\)?"
)

_MAIN_GRAD = re.compile(rb"\(param\.main_grad\.dtype=torch\.(\w{1,24})\)")

_CONFIG = b"DistributedDataParallelConfig("

_CONFIG_FIELD = re.compile(r"(\w{1,60})=([\w.]{1,60})")

# `  use_distributed_optimizer ....................... True`, Megatron-LM's print of its arguments.
_ARGUMENT = re.compile(rb"(?:^|\s)([a-z][a-z0-9_]{2,60}) \.{3,80} ([\w.]{1,60})\s{0,8}$")

_ARGUMENTS = (
    *("accumulate_allreduce_grads_in_fp32", "use_distributed_optimizer", "params_dtype", "bf16", "fp16"),
    *("data_parallel_size", "world_size"),
)

_CONFIG_BYTES = 16 * 1024
"""A config is printed on one line, which terminals and mails may break; it is some hundred bytes long."""

_MARK = re.compile(rb"Number of buckets for gradient all-reduce|Params for bucket \d{1,7} \(\d{1,15} elements")


class MegatronLogReader(Reader):
    """Reader of the bucket lines of Megatron and NeMo."""

    name = "megatron_log"
    empty = "buckets are announced, but their sizes are not there"
    hint = "give the log with the lines `Params for bucket N (M elements)`, which follow at level INFO"

    def begins(self, beginning: bytes) -> bool:
        """Return True for bucket lines without calls logged by NCCL, which have more detail."""
        return _MARK.search(beginning) is not None and LOGGED_CALL.search(beginning) is None

    def calls(self, source: Source) -> Iterator[Call]:
        """Yield the messages of every bucket."""
        logs = sorted(map(read_buckets, source.documents()), key=lambda log: log.label)
        check_ranks_once((log.label, rank) for log in logs for rank in log.buckets)
        if not any(log.announced or log.buckets for log in logs):
            hint = "record with --log-level INFO (NeMo: logging level INFO) from the start of the job on"
            raise TraceError(f"{source.where} holds no bucket lines of Megatron", hint=hint)
        job = _Job({key: value for log in reversed(logs) for key, value in log.settings.items()})
        calls = [
            call
            for log in logs
            for rank, buckets in log.buckets.items()
            for bucket in buckets
            for message in job.messages(bucket)
            for call in source.admit(message, rank=rank, lane=log.label)
        ]
        source.whole_file = False
        shown = ("grad_reduce_in_fp32", "use_distributed_optimizer", "overlap_grad_reduce", "bucket_size")
        source.detail["read_from"] = "bucket lines"
        source.detail |= {key: job.settings[key] for key in shown if key in job.settings}
        source.world_size = job.world_size
        source.ranks = {rank for log in logs for rank in log.buckets if rank is not None}
        source.notes += _notes(logs, job)
        yield from calls


class _Job:
    """Dtypes, groups and optimizer of a job, by its settings or by assumption."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self.settings = settings
        self.assumptions: dict[str, None] = {}
        self.is_sharded = self._is_on("use_distributed_optimizer")
        self.world_size = parse_int(settings.get("world_size"), most=MOST_RANKS) or 0
        self.group_size = parse_int(settings.get("data_parallel_size"), most=MOST_RANKS) or 0

    def messages(self, bucket: Tensor) -> Iterator[Message | str]:
        """Yield the messages of one bucket in a step, or why it has none."""
        kinds = [(Collective.ALL_REDUCE, self._gradient_dtype(bucket))]
        if self.is_sharded:
            kinds = [(Collective.REDUCE_SCATTER, kinds[0][1]), (Collective.ALL_GATHER, self._parameter_dtype())]
        for collective, dtype in kinds:
            yield build_message("bucket", collective, bucket.elements, dtype, group_size=self.group_size)

    def _gradient_dtype(self, bucket: Tensor) -> str:
        if bucket.dtype:
            return self._parse_dtype(bucket.dtype, "gradients")
        in_fp32 = self.settings.get("grad_reduce_in_fp32", self.settings.get("accumulate_allreduce_grads_in_fp32"))
        if in_fp32 == "True" or (in_fp32 == "False" and self._half_precision()):
            return "float32" if in_fp32 == "True" else self._half_precision()
        assumed = "float32 assumed, as Megatron reduces bf16 in fp32"
        return self._assume("float32", f"the log does not give the gradients' dtype: {assumed}")

    def _parameter_dtype(self) -> str:
        half = self._half_precision()
        if half or self.settings.get("params_dtype"):
            return half or self._parse_dtype(self.settings["params_dtype"], "parameters")
        sentence = "the log does not give the parameters' dtype: bfloat16 assumed for their all_gather"
        return self._assume("bfloat16", sentence)

    def _half_precision(self) -> str:
        return next((dtype for key, dtype in (("bf16", "bfloat16"), ("fp16", "float16")) if self._is_on(key)), "")

    def _is_on(self, key: str) -> bool:
        return self.settings.get(key) == "True"

    def _parse_dtype(self, dtype: str, owners: str) -> str:
        try:
            return parse_dtype(dtype)
        except InputError:
            return self._assume("float32", f"unknown dtype {dtype!r} of the {owners}: assuming float32")

    def _assume(self, dtype: str, sentence: str) -> str:
        self.assumptions[sentence] = None
        return dtype


def _notes(logs: Sequence[BucketLog], job: _Job) -> list[str]:
    notes = [
        "every bucket counts once per step; the log does not show tensor, pipeline and expert parallelism",
        *job.assumptions,
    ]
    if "use_distributed_optimizer" not in job.settings:
        notes.append("the log does not show whether the optimizer is distributed: assuming all_reduce")
    if not job.group_size:
        notes.append("the log does not give the data-parallel size: assuming the whole job for every message")
    for log in logs:
        for rank, announced in log.announced.items():
            count = len(log.buckets.get(rank, ()))
            label = log.label if rank is None else f"{log.label} (rank {rank})"
            if count < announced:
                notes.append(f"partial: {count} of {announced} buckets are in {label}")
            if log.buffers[rank] > 1 and rank is None:
                notes.append(
                    f"{log.buffers[rank]} buffers in {label} add up, as of one rank; "
                    "if they are of several pipeline stages, no rank sends all of them"
                )
    return notes


@dataclass(slots=True, kw_only=True)
class BucketLog:
    """Content of one file.

    Attributes:
        label: name of the file.
        buckets: rank (None without a launcher's prefix) -> its buckets, of all buffers; their elements include the
            padding where it is logged, because it is sent too, and their dtype is empty where unknown.
        announced: rank -> how many buckets were announced.
        buffers: rank -> how many announcements there were, one per buffer.
        settings: names and values of the DDP config and of the printed arguments; the config wins.
    """

    label: str
    buckets: dict[int | None, list[Tensor]] = field(default_factory=dict)
    announced: dict[int | None, int] = field(default_factory=dict)
    buffers: dict[int | None, int] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)


def read_buckets(document: Document) -> BucketLog:
    """Read one log.

    Raises:
        TraceError: damaged, or without its line ends.
    """
    log = BucketLog(label=document.label)
    arguments: dict[str, str] = {}
    config = b""
    is_in_config, kinds = False, 0
    for rank, line in ranked_lines(document):
        if not config and _CONFIG in line:
            is_in_config = True
            config = line[line.index(_CONFIG) + len(_CONFIG) :].rstrip(b"\r\n")
        elif is_in_config:
            config += line.rstrip(b"\r\n")
        is_in_config = is_in_config and b")" not in config and len(config) < _CONFIG_BYTES
        if b" ..." in line and (argument := _ARGUMENT.search(line)) is not None:
            key, value = argument[1].decode("ascii"), argument[2].decode("ascii")
            if key in _ARGUMENTS:
                arguments.setdefault(key, value)
        elif b"bucket" in line:
            kinds += _add_line(log, rank, line)
            check_bounded(kinds, log.label)
        elif b"main_grad.dtype" in line and (dtype := _MAIN_GRAD.search(line)) is not None:
            # Megatron Core of 2026 prints the dtype of the gradients behind each parameter of the last bucket.
            buckets = log.buckets.get(rank)
            if buckets and not buckets[-1].dtype:
                buckets[-1] = replace(buckets[-1], dtype=dtype[1].decode("ascii"))
    fields = _CONFIG_FIELD.findall(config.split(b")")[0].decode("utf-8", errors="replace"))
    log.settings = {**arguments, **dict(fields)}
    return log


def _add_line(log: BucketLog, rank: int | None, line: bytes) -> int:
    """Add the buckets that a line names; return the number of its facts."""
    count, bucket = _COUNT.search(line), _BUCKET.search(line)
    if bucket is not None and _BUCKET.search(line, bucket.end()):
        hint = "give the log as it was written"
        raise TraceError(f"{log.label} has lost its line ends: several buckets are on one line", hint=hint)
    if count is not None:
        log.announced[rank] = log.announced.get(rank, 0) + int(count[1])
        log.buffers[rank] = log.buffers.get(rank, 0) + 1
    if bucket is not None:
        elements, padded, dtype = bucket.groups()
        tensor = Tensor(elements=int(padded or elements), dtype=(dtype or b"").decode("ascii"))
        log.buckets.setdefault(rank, []).append(tensor)
    return int(count is not None or bucket is not None)
