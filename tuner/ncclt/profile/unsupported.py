"""Formats that ncclt recognises and does not read, each with the way to one that it does read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ncclt.errors import TraceError

XLA_TRACE = re.compile(
    rb'\s*\{(?=[\0-\xff]{0,400}"traceEvents")[\0-\xff]{0,262144}?'
    rb'"(?:highres-ticks|hlo_op|hlo_module)"\s*:',
    re.DOTALL,
)
"""The trace viewer's JSON of XLA and TensorFlow, in the layout of which PyTorch's traces are too."""

_NCCL_LOG = "record NCCL's log instead: NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,COLL,TUNING"


class _Format(NamedTuple):
    """A format: pattern of the file's beginning or of its name (either is enough), and what to do."""

    title: str
    hint: str
    content: bytes | re.Pattern[bytes] = rb"(?!)"
    name: str = r"(?!)"


_FORMATS = (
    _Format(
        "a report of Nsight Systems",
        "export it: nsys export --type sqlite --include-blobs=true {file}",
        name=r"\.(nsys-rep|qdrep|qdstrm)$",
    ),
    _Format(
        "a report of Nsight Compute, of kernels alone",
        "record with Nsight Systems: nsys profile -t cuda,nvtx",
        rb"NVR\0",
        r"\.ncu-rep$",
    ),
    _Format(
        "a Perfetto trace in protobuf",
        "convert it: traceconv json {file} {file}.json",
        name=r"\.(pftrace|perfetto-trace)$",
    ),
    _Format("a trace of XLA, whose kernels have no message sizes", _NCCL_LOG, XLA_TRACE),
    _Format(
        "an XSpace of XLA", _NCCL_LOG, rb"(?s)[\0-\xff]{0,400}/(?:device:GPU|host:CPU|host:metadata)", r"\.xplane\.pb$"
    ),
    _Format(
        "a Chakra trace in protobuf",
        "give the JSON that torch.profiler.ExecutionTraceObserver wrote, from which it was converted",
        rb"[\x03-\x20]\x0a[\x01-\x1e]\d+\.\d+\.\d+",  # its GlobalMetadata: length, tag 1, version
        r"\.et$",
    ),
    _Format("a collective trace of NCCLX", _NCCL_LOG, rb'\s*\{\s*"(?:CT_|commHash|rankStatus)'),
    _Format(
        "a table of step times, without messages",
        "record what the job sends: ncclt profile record --name NAME -- COMMAND; to compare step times with and "
        "without the policy: ncclt verify -- COMMAND",
        # PyTorch's benchmarks/distributed/ddp/benchmark.py prints `2 GPUs -- 1M/2G: p50: 0.066s 486/s p75: …`.
        rb'[\0-\xff]{0,65536}?(?:\bp50\b[^\n]{0,80}\bp(?:75|9[059])\b|"benchmark_results")',
    ),
    _Format("compressed with zip", "unpack it: unzip {file}", rb"PK\x03\x04"),
    _Format("compressed with zstd", "unpack it: zstd -d {file}", rb"\x28\xb5\x2f\xfd"),
    _Format("compressed with xz", "unpack it: unxz {file}", rb"\xfd7zXZ\0"),
    _Format("compressed with bzip2", "unpack it: bunzip2 {file}", rb"BZh[1-9]1AY"),
    _Format("text in UTF-16", "convert it: iconv -f UTF-16 -t UTF-8 {file}", rb"\xff\xfe|\xfe\xff"),
    _Format(
        "a web page",
        "download the file itself, not the page that shows it",
        rb"(?i)\s*<(?:!doctype html|html)[\s>]",
    ),
)


def find_unsupported(path: Path, heads: Sequence[bytes]) -> TraceError | None:
    """Return the refusal of a file in a known format that ncclt does not read; None = its format is not known."""
    for title, hint, content, name in _FORMATS:
        if re.search(name, path.name) or any(re.match(content, head) for head in heads):
            return TraceError(f"{path.name} is {title}, which ncclt does not read", hint=hint.format(file=path.name))
    return None
