"""Formats that ncclt recognises and does not read, each with the way to one that it does read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from ncclt.errors import TraceError

_NEVER, _NEVER_BYTES = re.compile(r"(?!)"), re.compile(rb"(?!)")
XLA_TRACE = re.compile(
    rb'\s*\{(?=[\0-\xff]{0,400}"traceEvents")[\0-\xff]{0,262144}?'
    rb'"(?:highres-ticks|hlo_op|hlo_module)"\s*:',
    re.DOTALL,
)
"""The trace viewer's JSON of XLA and TensorFlow, in the layout of which PyTorch's traces are too."""

_NCCL_LOG = "record NCCL's log instead: NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,COLL,TUNING"
_FORMATS: tuple[tuple[str, re.Pattern[str], re.Pattern[bytes], str], ...] = (
    (
        "a report of Nsight Systems",
        re.compile(r"\.(nsys-rep|qdrep|qdstrm)$"),
        _NEVER_BYTES,
        "export it: nsys export --type sqlite --include-blobs=true {file}",
    ),
    (
        "a report of Nsight Compute, of kernels alone",
        re.compile(r"\.ncu-rep$"),
        re.compile(rb"NVR\0"),
        "record with Nsight Systems: nsys profile -t cuda,nvtx",
    ),
    (
        "a Perfetto trace in protobuf",
        re.compile(r"\.(pftrace|perfetto-trace)$"),
        _NEVER_BYTES,
        "convert it: traceconv json {file} {file}.json",
    ),
    ("a trace of XLA, whose kernels have no message sizes", _NEVER, XLA_TRACE, _NCCL_LOG),
    (
        "an XSpace of XLA",
        re.compile(r"\.xplane\.pb$"),
        re.compile(rb"[\0-\xff]{0,400}/(?:device:GPU|host:CPU|host:metadata)", re.DOTALL),
        _NCCL_LOG,
    ),
    (
        "a Chakra trace in protobuf",
        re.compile(r"\.et$"),
        re.compile(rb"[\x03-\x20]\x0a[\x01-\x1e]\d+\.\d+\.\d+"),  # its GlobalMetadata: length, tag 1, version
        "give the JSON that torch.profiler.ExecutionTraceObserver wrote, from which it was converted",
    ),
    ("a collective trace of NCCLX", _NEVER, re.compile(rb'\s*\{\s*"(?:CT_|commHash|rankStatus)'), _NCCL_LOG),
    (
        "a table of step times, without messages",
        _NEVER,
        # PyTorch's benchmarks/distributed/ddp/benchmark.py prints `2 GPUs -- 1M/2G: p50: 0.066s 486/s p75: …`.
        re.compile(rb'[\0-\xff]{0,65536}?(?:\bp50\b[^\n]{0,80}\bp(?:75|9[059])\b|"benchmark_results")'),
        "record what the job sends: ncclt profile record --name NAME -- COMMAND; to compare step times with and "
        "without the policy: ncclt verify -- COMMAND",
    ),
    ("compressed with zip", _NEVER, re.compile(rb"PK\x03\x04"), "unpack it: unzip {file}"),
    ("compressed with zstd", _NEVER, re.compile(rb"\x28\xb5\x2f\xfd"), "unpack it: zstd -d {file}"),
    ("compressed with xz", _NEVER, re.compile(rb"\xfd7zXZ\0"), "unpack it: unxz {file}"),
    ("compressed with bzip2", _NEVER, re.compile(rb"BZh[1-9]1AY"), "unpack it: bunzip2 {file}"),
    ("text in UTF-16", _NEVER, re.compile(rb"\xff\xfe|\xfe\xff"), "convert it: iconv -f UTF-16 -t UTF-8 {file}"),
    (
        "a web page",
        _NEVER,
        re.compile(rb"\s*<(?:!doctype html|html)[\s>]", re.IGNORECASE),
        "download the file itself, not the page that shows it",
    ),
)
"""Name, pattern of the file's name and of its beginning (either is enough), and what to do."""


def find_unsupported(path: Path, heads: Sequence[bytes]) -> TraceError | None:
    """Return the refusal of a file in a known format that ncclt does not read; None = its format is not known."""
    for what, of_name, of_content, hint in _FORMATS:
        if of_name.search(path.name) or any(map(of_content.match, heads)):
            return TraceError(f"{path.name} is {what}, which ncclt does not read", hint=hint.format(file=path.name))
    return None
