"""A workload as text and as JSON: `ncclt profile show` and the end of `ncclt profile import`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ncclt.cli.output import note, print_table
from ncclt.core.message import format_bytes
from ncclt.core.plural import count_noun
from ncclt.core.workload import RANK_ROLES
from ncclt.profile.views.exposure import bound_gain
from ncclt.profile.views.histogram import SIZE_CLASSES, count_traffic, find_median_sizes, group_by_size

if TYPE_CHECKING:
    from ncclt.core.workload import MessageCalls, Workload

DOMINANT_SHARE = 0.95
"""Share of the communication time, or of the bytes where there are no times, that the dominant messages cover."""


def profile_document(workload: Workload) -> dict[str, Any]:
    """Return the workload's document with figures derived from it, for `--json`."""
    document = workload.to_document()
    total, communication_us = workload.bytes_per_step, workload.communication_us
    dominant = {calls.message for calls in workload.dominant(DOMINANT_SHARE)}
    for row, calls in zip(document["messages"], workload.messages, strict=True):
        row["bytes_per_step"] = calls.bytes_per_step
        row["share"] = calls.bytes_per_step / total
        if communication_us:
            row["time_share"] = (calls.recorded_us or 0.0) * calls.calls_per_step / communication_us
        row["dominant"] = calls.message in dominant
    bound, sent, half = bound_gain(workload), count_traffic(workload), find_median_sizes(workload)
    return {
        **document,
        "bytes_per_step": total,
        "communication_us": communication_us,
        "dominant_by": "time" if communication_us else "bytes",
        "exposed_share": bound.share if bound else None,
        "wire_bytes_per_rank": sent.per_rank if sent else None,
        "wire_bytes_total": sent.total if sent else None,
        "size_classes": [
            {
                "collective": c.collective.value,
                "class": c.name,
                "calls": c.calls,
                "bytes_per_step": c.bytes_per_step,
                "time_us": c.time_us,
            }
            for c in group_by_size(workload)
        ],
        "half_of": {"calls": half.calls_bytes, "bytes": half.bytes_bytes, "time": half.time_bytes},
    }


def print_profile(workload: Workload, *, limit: int) -> None:
    """Print a workload, heaviest messages first.

    Args:
        limit: rows shown at most; 0 = all.
    """
    origin = workload.provenance
    detail = ", ".join(f"{key} {value}" for key, value in origin.detail.items())
    print(f"{workload.name}: {origin.source}{f', {detail}' if detail else ''}")
    _print_times(workload)
    _print_messages(workload, limit)
    _print_bytes(workload)
    if len(workload.messages) > 1:
        _print_classes(workload)
    for sentence in origin.notes:
        note(sentence)


def _print_times(workload: Workload) -> None:
    origin, communication_us = workload.provenance, workload.communication_us
    if workload.step_time_us:
        steps = f" (median of {count_noun(origin.steps, 'step')})" if origin.steps else ""
        print(f"Step time: {_milliseconds(workload.step_time_us)}{steps}")
    if communication_us:
        per = " for the whole file" if origin.whole_file else "/step"
        print(f"Communication: {_milliseconds(communication_us)}{per} (sum of calls, no overlap)")
    bound = bound_gain(workload)
    if bound is not None:
        exposed, share = _milliseconds(workload.exposed_us or 0.0), f"{bound.share * 100:.1f} %"
        print(f"Exposed communication: {exposed}/step, {share} of the step; no NCCL setting can gain more")
    elif workload.exposed_us is not None:
        print(f"Exposed communication: {_milliseconds(workload.exposed_us)}, no step marked")
    elif communication_us or workload.step_time_us:
        print("Exposed communication: unknown, and with it the upper bound of the gain")


def _milliseconds(time_us: float) -> str:
    return f"{time_us / 1e3:.3g} ms" if time_us < 1e6 else f"{time_us / 1e6:.3g} s"


def _size(size_bytes: float) -> str:
    """Write a size with three digits."""
    value, units = float(size_bytes), iter(("B", "KiB", "MiB", "GiB"))
    unit = next(units)
    while value >= 999.5 and unit != "GiB":
        value, unit = value / 1024, next(units)
    return f"{value:.3g} {unit}"


def _print_messages(workload: Workload, limit: int) -> None:
    by_time = bool(workload.communication_us)
    weights = workload.weights()
    whole = sum(weights)
    dominant = workload.dominant(DOMINANT_SHARE)
    marked = {calls.message for calls in dominant}
    ranked = sorted(zip(weights, workload.messages, strict=True), key=lambda pair: -pair[0])
    shown = ranked[: limit or None]
    header = ["", "collective", "dtype", "bytes", "size", "group", f"calls per {workload.unit}"]
    header += [f"bytes per {workload.unit}", "% of bytes", *(["µs per call", "% of time"] if by_time else [])]
    print_table(
        header, [_row(calls, workload, by_time, calls.message in marked) for _, calls in shown], numbers=header[3:]
    )
    unit = "communication time" if by_time else "bytes"
    if len(shown) < len(ranked):
        rest = sum(weight for weight, _ in ranked[len(shown) :]) / whole
        more = len(ranked) - len(shown)
        print(f"... and {count_noun(more, 'more message')} with {rest * 100:.1f} % of the {unit} (--limit 0 shows all)")
    covered = sum(weight for weight, calls in ranked if calls.message in marked) / whole
    print(
        f"* dominant: {len(dominant)} of {count_noun(len(ranked), 'message')}, {covered * 100:.1f} % of the {unit} "
        f"of a {workload.unit}"
    )


def _row(calls: MessageCalls, workload: Workload, by_time: bool, marked: bool) -> list[str]:
    message = calls.message
    row = [
        "*" if marked else "",
        message.collective.value,
        message.dtype,
        f"{message.size_bytes:,}",
        format_bytes(message.size_bytes),
        str(message.group_size or "job"),
        f"{calls.calls_per_step:g}",
        format_bytes(round(calls.bytes_per_step)),
        f"{calls.bytes_per_step / workload.bytes_per_step * 100:.1f}",
    ]
    if by_time:
        time_us = calls.recorded_us or 0.0
        share = time_us * calls.calls_per_step / (workload.communication_us or 1.0)
        row += [f"{time_us:,.1f}", f"{share * 100:.1f}"]
    return row


def _print_bytes(workload: Workload) -> None:
    role = " of this role" if RANK_ROLES in workload.provenance.detail else ""
    sent = count_traffic(workload)
    if sent is None:
        wire = "bytes on the wire depend on the size of the job"
    else:
        wire = f"{_size(sent.per_rank)} on the wire"
        if sent.total is not None:
            wire += f", {_size(sent.total)} for all {workload.provenance.world_size} ranks"
    print(f"{_size(workload.bytes_per_step)} per rank{role} {workload.per} ({wire})")


def _print_classes(workload: Workload) -> None:
    """Print the shares of each collective and size class, and the median size by calls and by bytes."""
    communication_us = workload.communication_us
    limits = [format_bytes(below) for _, below in SIZE_CLASSES[:-1]]
    shown = dict(
        zip((name for name, _ in SIZE_CLASSES), (f"< {limits[0]}", f"< {limits[1]}", f">= {limits[1]}"), strict=True)
    )
    calls = sum(c.calls_per_step for c in workload.messages)
    header = ["collective", "size", "% of calls", "% of bytes", *(["% of time"] if communication_us else [])]
    rows = []
    for one in group_by_size(workload):
        row = [
            one.collective.value,
            shown[one.name],
            f"{one.calls / calls * 100:.1f}",
            f"{one.bytes_per_step / workload.bytes_per_step * 100:.1f}",
        ]
        rows.append([*row, f"{(one.time_us or 0.0) / communication_us * 100:.1f}"] if communication_us else row)
    print_table(header, rows, numbers=header[2:])
    half = find_median_sizes(workload)
    by_time = f", {_size(half.time_bytes)} by time" if half.time_bytes else ""
    print(f"Median size: {_size(half.calls_bytes)} by calls, {_size(half.bytes_bytes)} by bytes{by_time}")
