"""Logs of Megatron-LM, Megatron Core and NeMo: the gradient buckets, of which each is sent once per step.

With the distributed optimizer a bucket is one reduce_scatter of gradients and one all_gather of parameters, without it
one all_reduce. Tensor, pipeline and expert parallelism do not show.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ncclt.core.message import DTYPE_SIZES, MOST_BYTES, Collective, Message, parse_dtype
from ncclt.core.workload import MessageCalls, Provenance, RankMessages, Workload, merge_ranks
from ncclt.errors import InputError, TraceError
from ncclt.profile.documents import documents, heads
from ncclt.profile.ranks import RankFile, check_one_job
from ncclt.profile.readers.megatron_log.lines import Bucket, BucketLog, read_buckets
from ncclt.profile.readers.nccl_log.lines import LOGGED_CALL, check_distinct

name = "megatron_log"

_MARK = re.compile(rb"Number of buckets for gradient all-reduce|Params for bucket \d{1,7} \(\d{1,15} elements")


def recognises(path: Path) -> bool:
    """Tell whether a file has bucket lines near its beginning, and no calls logged by NCCL."""
    try:
        beginnings = heads(path)
    except TraceError:
        return False
    return any(_MARK.search(one) for one in beginnings) and not any(LOGGED_CALL.search(one) for one in beginnings)


def read(paths: Sequence[Path], *, name: str) -> Workload:
    """Read the logs of one job.

    Raises:
        TraceError: damaged, no bucket lines, or a rank in two files.
    """
    check_distinct(paths)
    logs = sorted((read_buckets(d) for path in paths for d in documents(path)), key=lambda log: log.label)
    check_one_job([RankFile(label=log.label, ranks=tuple(log.buckets)) for log in logs])
    settings = {key: value for log in reversed(logs) for key, value in log.settings.items()}
    job = _Job(settings)
    left_out: Counter[str] = Counter()
    views = [
        RankMessages(rank=rank, calls=Counter(("", m) for bucket in buckets for m in job.messages(bucket, left_out)))
        for log in logs
        for rank, buckets in log.buckets.items()
    ]
    per_step = merge_ranks(views)
    if not per_step:
        raise _nothing(logs, left_out)
    return Workload(
        name=name,
        messages=tuple(MessageCalls(message=message, calls_per_step=calls) for message, calls in per_step.items()),
        provenance=_provenance(logs, job, left_out),
    )


class _Job:
    """What the settings say of dtypes, groups and the optimizer, and what has to be assumed."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self.settings = settings
        self.assumptions: dict[str, None] = {}
        self.is_sharded = settings.get("use_distributed_optimizer") == "True"
        self.world_size = _number(settings.get("world_size"))
        self.group_size = _number(settings.get("data_parallel_size"))

    def messages(self, bucket: Bucket, left_out: Counter[str]) -> Iterator[Message]:
        """Yield what one bucket sends in a step."""
        kinds = [(Collective.ALL_REDUCE, self._gradient_dtype(bucket))]
        if self.is_sharded:
            kinds = [(Collective.REDUCE_SCATTER, kinds[0][1]), (Collective.ALL_GATHER, self._parameter_dtype())]
        for collective, dtype in kinds:
            size = bucket.elements * DTYPE_SIZES[dtype]
            if 0 < size <= MOST_BYTES:
                yield Message(collective=collective, dtype=dtype, size_bytes=size, group_size=self.group_size)
            else:
                left_out[f"bucket of {bucket.elements} elements"] += 1

    def _gradient_dtype(self, bucket: Bucket) -> str:
        if bucket.dtype:
            return self._known(bucket.dtype, "gradients")
        in_fp32 = self.settings.get("grad_reduce_in_fp32", self.settings.get("accumulate_allreduce_grads_in_fp32"))
        if in_fp32 == "True":
            return "float32"
        half = self._half_precision()
        if in_fp32 == "False" and half:
            return half
        self._assume("the log does not tell the gradients' dtype: float32 assumed, as Megatron reduces bf16 in fp32")
        return "float32"

    def _parameter_dtype(self) -> str:
        half = self._half_precision()
        if half or self.settings.get("params_dtype"):
            return half or self._known(self.settings["params_dtype"], "parameters")
        self._assume("the log does not tell the parameters' dtype: bfloat16 assumed for their all_gather")
        return "bfloat16"

    def _half_precision(self) -> str:
        return next((dtype for key, dtype in (("bf16", "bfloat16"), ("fp16", "float16")) if self._is_on(key)), "")

    def _is_on(self, key: str) -> bool:
        return self.settings.get(key) == "True"

    def _known(self, spelled: str, what: str) -> str:
        try:
            return parse_dtype(spelled)
        except InputError:
            self._assume(f"the dtype {spelled!r} of the {what} is not known: float32 assumed")
            return "float32"

    def _assume(self, sentence: str) -> None:
        self.assumptions[sentence] = None


def _number(text: str | None) -> int:
    return int(text) if text is not None and re.fullmatch(r"[0-9]{1,7}", text) else 0


def _nothing(logs: Sequence[BucketLog], left_out: Counter[str]) -> TraceError:
    where = logs[0].label if len(logs) == 1 else f"the {len(logs)} files"
    if any(log.announced for log in logs) or left_out:
        why = "; ".join(f"{count} x {reason}" for reason, count in sorted(left_out.items()))
        return TraceError(
            f"no collectives in {where}: {why or 'buckets are announced, but their sizes are not there'}",
            hint="give the log with the lines `Params for bucket N (M elements)`, which follow at level INFO",
        )
    return TraceError(
        f"{where} holds no bucket lines of Megatron",
        hint="record with --log-level INFO (NeMo: logging level INFO) from the start of the job on",
    )


def _provenance(logs: Sequence[BucketLog], job: _Job, left_out: Counter[str]) -> Provenance:
    facts = {"files": ", ".join(log.label for log in logs), "read_from": "bucket lines"}
    for key in ("grad_reduce_in_fp32", "use_distributed_optimizer", "overlap_grad_reduce", "bucket_size"):
        if key in job.settings:
            facts[key] = job.settings[key]
    return Provenance(
        source=name,
        detail=facts,
        world_size=job.world_size,
        ranks_read=tuple(sorted({rank for log in logs for rank in log.buckets if rank is not None})),
        notes=(*_notes(logs, job), *(f"left out: {count} x {reason}" for reason, count in sorted(left_out.items()))),
    )


def _notes(logs: Sequence[BucketLog], job: _Job) -> list[str]:
    notes = [
        "every bucket counts once per step; tensor, pipeline and expert parallelism do not show in the log",
        *job.assumptions,
    ]
    if "use_distributed_optimizer" not in job.settings:
        notes.append("the log does not tell whether the optimizer is distributed: all_reduce assumed")
    if not job.group_size:
        notes.append("the log does not tell the data-parallel size: every message is taken to be of the whole job")
    for log in logs:
        for rank, announced in log.announced.items():
            there = len(log.buckets.get(rank, ()))
            whose = log.label if rank is None else f"{log.label} (rank {rank})"
            if there < announced:
                notes.append(f"partial: {there} of {announced} buckets are in {whose}")
            if log.buffers[rank] > 1 and rank is None:
                notes.append(
                    f"{log.buffers[rank]} buffers in {whose} add up, as of one rank; "
                    "if they are of several pipeline stages, no rank sends all of them"
                )
    return notes
