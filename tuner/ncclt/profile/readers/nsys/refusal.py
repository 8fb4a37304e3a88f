"""Why an export gives no workload, and the command that gives one that does."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import PurePath

from ncclt.errors import TraceError
from ncclt.profile.readers.nsys.calls import NsysExport
from ncclt.profile.readers.nsys.kernels import shown
from ncclt.profile.reading import reasons

_RECORD = "nsys profile --trace=cuda,nvtx --output=REPORT COMMAND"


def refusal(recordings: Sequence[NsysExport], left_out: Mapping[str, int]) -> TraceError:
    """Return the error for exports without a message: what was seen, and what to do."""
    labels = ", ".join(recording.label for recording in recordings)
    functions = sum((recording.functions for recording in recordings), Counter[str]())
    kernels = kernel_words(recordings)
    seen = f"NCCL kernels: {shown(kernels) or 'none'}; NCCL calls: {shown(functions) or 'none'}"
    if not functions and not kernels:
        others = sum(recording.other_kernels for recording in recordings)
        return TraceError(
            f"no NCCL in {labels}: not one NCCL kernel or call among {others} kernel launches",
            hint=f"record a run on more than one GPU: {_RECORD}",
        )
    if not functions:
        return TraceError(
            f"no message sizes in {labels}: recorded without NVTX, and kernels carry no size ({seen})",
            hint=f"record NVTX as well: {_RECORD}; then export with --include-blobs=true",
        )
    if left_out:
        why = "; ".join(reasons(left_out))
        return TraceError(f"no message in {labels}: {why}", hint=f"record from the start of the job: {_RECORD}")
    if any(recording.undecoded for recording in recordings):
        return TraceError(
            f"no message sizes in {labels}: the export has payloads but not the schemas that explain them ({seen})",
            hint=f"export again, whole: {export_command(recordings[0])}",
        )
    if any(recording.payloads for recording in recordings) or not _may_have_lost_payloads(recordings):
        return TraceError(
            f"no message sizes in {labels}: NCCL wrote none; it does since 2.16 ({seen})",
            hint="update NCCL, or import its own log: NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,COLL",
        )
    return TraceError(
        f"no message sizes in {labels}: it was exported without NVTX payloads ({_switches(recordings[0])}; {seen})",
        hint=f"export the report again: {export_command(recordings[0])}",
    )


def kernel_words(recordings: Sequence[NsysExport]) -> Counter[str]:
    """Count the launches of NCCL's kernels by operation and dtype."""
    words: Counter[str] = Counter()
    for recording in recordings:
        for kernel, count in recording.kernels.items():
            words[f"{kernel.word} {kernel.dtype}" if kernel.dtype else kernel.word] += count
    return words


def export_command(recording: NsysExport) -> str:
    """Return the command that exports a report with its payloads, beside the file that lacks them."""
    stem = PurePath(recording.label).stem
    report = PurePath(recording.facts.get("EXPORT_PARAM_INPUT_FILE", "")).name or f"{stem}.nsys-rep"
    words = (
        "nsys", "export", "--type", "sqlite", "--include-blobs=true", "--force-overwrite=true",
        "--output", f"{stem}-payloads.sqlite", report[:200],
    )  # fmt: skip
    return shlex.join(words)


def _may_have_lost_payloads(recordings: Sequence[NsysExport]) -> bool:
    """Tell whether a switch was off; older exports do not say, and then nobody knows."""
    return any(recording.facts.get("EXPORT_PARAM_INCLUDE_BLOBS", "false") != "true" for recording in recordings)


def _switches(recording: NsysExport) -> str:
    return ", ".join(
        f"{key}={recording.facts.get(f'EXPORT_PARAM_{key}', 'not told')[:10]}"
        for key in ("INCLUDE_BLOBS", "INCLUDE_JSON")
    )
