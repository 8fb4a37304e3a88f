"""The bucket lines and the settings in logs of Megatron-LM, Megatron Core and NeMo."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ncclt.errors import TraceError
from ncclt.profile.documents import Document
from ncclt.profile.readers.nccl_log.lines import check_bounded, lines

# Of a launcher in front of the line: `3: `, `[rank3]:`, `[default3]:`, `[1,3]<stdout>:`.
_RANK = re.compile(rb"^\s{0,4}(?:\[(?:rank|default)(\d{1,7})\]:|\[\d{1,3},(\d{1,7})\]<std\w{3}>:|(\d{1,7}): )")
_COUNT = re.compile(rb"Number of buckets for gradient all-reduce / reduce-scatter: (\d{1,7})")
_BUCKET = re.compile(
    rb"Params for bucket (\d{1,7}) \((\d{1,15}) elements(?:, (\d{1,15}) padded size)?"
    rb"(?:, \d{1,9} param\(s\) with extra main_grads)?(?:, dtype torch\.(\w{1,24}))?\)?"
)
_MAIN_GRAD = re.compile(rb"\(param\.main_grad\.dtype=torch\.(\w{1,24})\)")
_CONFIG = b"DistributedDataParallelConfig("
_CONFIG_FIELD = re.compile(r"(\w{1,60})=([\w.]{1,60})")
# `  use_distributed_optimizer ....................... True`, Megatron-LM's print of its arguments.
_ARGUMENT = re.compile(rb"(?:^|\s)([a-z][a-z0-9_]{2,60}) \.{3,80} ([\w.]{1,60})\s{0,8}$")
_ARGUMENTS = frozenset(
    {
        "accumulate_allreduce_grads_in_fp32", "bf16", "data_parallel_size", "fp16", "params_dtype",
        "use_distributed_optimizer", "world_size",
    }
)  # fmt: skip
_CONFIG_BYTES = 16 * 1024
"""A config is printed on one line, which terminals and mails may break; it is some hundred bytes long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """One gradient bucket.

    Attributes:
        number: from 1 on, within its buffer.
        elements: with the padding, where it is told, because the padding is sent too.
        dtype: of the gradients, empty where not told.
    """

    number: int
    elements: int
    dtype: str = ""


@dataclass(slots=True, kw_only=True)
class BucketLog:
    """What one file says.

    Attributes:
        label: name of the file.
        buckets: rank (None without a launcher's prefix) -> its buckets, of all buffers.
        announced: rank -> how many buckets were announced.
        buffers: rank -> how many announcements there were, one per buffer.
        settings: names and values of the DDP config and of the printed arguments; the config wins.
    """

    label: str
    buckets: dict[int | None, list[Bucket]] = field(default_factory=dict)
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
    is_in_config, found = False, 0
    for line in lines(document):
        if not config and _CONFIG in line:
            is_in_config = True
            config = line[line.index(_CONFIG) + len(_CONFIG) :].rstrip(b"\r\n")
        elif is_in_config:
            config += line.rstrip(b"\r\n")
        is_in_config = is_in_config and b")" not in config and len(config) < _CONFIG_BYTES
        if b" ..." in line and (argument := _ARGUMENT.search(line)) is not None:
            _keep(arguments, argument[1].decode("ascii"), argument[2].decode("ascii"))
        elif b"bucket" in line:
            found += _add(log, line)
            check_bounded(found, log.label)
        elif b"main_grad.dtype" in line and (dtype := _MAIN_GRAD.search(line)) is not None:
            _type_last_bucket(log, _rank(line), dtype[1].decode("ascii"))
    fields = _CONFIG_FIELD.findall(config.split(b")")[0].decode("utf-8", errors="replace"))
    log.settings = {**arguments, **dict(fields)}
    return log


def _keep(arguments: dict[str, str], name: str, value: str) -> None:
    if name in _ARGUMENTS:
        arguments.setdefault(name, value)


def _add(log: BucketLog, line: bytes) -> int:
    """Add what a line says of buckets; return 1 if it is anything."""
    rank = _rank(line)
    count, bucket = _COUNT.search(line), _BUCKET.search(line)
    if bucket is not None and _BUCKET.search(line, bucket.end()):
        raise TraceError(
            f"{log.label} has lost its line ends: several buckets are on one line",
            hint="give the log as it was written",
        )
    if count is not None:
        log.announced[rank] = log.announced.get(rank, 0) + int(count[1])
        log.buffers[rank] = log.buffers.get(rank, 0) + 1
    if bucket is not None:
        number, elements, padded, dtype = bucket.groups()
        one = Bucket(number=int(number), elements=int(padded or elements), dtype=(dtype or b"").decode("ascii"))
        log.buckets.setdefault(rank, []).append(one)
    return int(count is not None or bucket is not None)


def _type_last_bucket(log: BucketLog, rank: int | None, dtype: str) -> None:
    """Give the last bucket the dtype of its gradients, which Megatron Core of 2026 prints behind each parameter."""
    buckets = log.buckets.get(rank)
    if buckets and not buckets[-1].dtype:
        buckets[-1] = replace(buckets[-1], dtype=dtype)


def _rank(line: bytes) -> int | None:
    match = _RANK.search(line)
    return None if match is None else int(next(group for group in match.groups() if group is not None))
