"""`ncclt profile diff A B`: differences between two workloads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ncclt.cli.completion import model_names
from ncclt.cli.options import AsJson, storage_url
from ncclt.cli.output import print_json, print_table, say
from ncclt.core.plural import count_noun

if TYPE_CHECKING:
    from ncclt.core.message import Message
    from ncclt.profile.views.difference import Difference, Totals


def diff(
    before: Annotated[str, typer.Argument(metavar="A", help="Name of a workload.", autocompletion=model_names)],
    after: Annotated[
        str,
        typer.Argument(metavar="B", help="Name of the workload to compare with A.", autocompletion=model_names),
    ],
    as_json: AsJson = False,
) -> None:
    """Compare the messages of two workloads."""
    from ncclt.profile.views.difference import compare_workloads
    from ncclt.store import open_to_read

    with open_to_read(storage_url()) as store:
        first, second = store.workloads.get(before), store.workloads.get(after)
    found = compare_workloads(first, second)
    if first.unit != second.unit:
        say(f"ncclt: calls cannot be compared: {before} counts those of a {first.unit}, {after} of a {second.unit}")
    if as_json:
        print_json({"schema": 1, "before": before, "after": after, **found.to_document()})
        return
    print_difference(found, before, after, units=(first.unit, second.unit))


def print_difference(found: Difference, before: str, after: str, *, units: tuple[str, str] = ("step", "step")) -> None:
    """Print a difference: `+` only in B, `-` only in A, `~` in both with other calls."""
    if found.is_empty:
        print(f"{before} and {after} send the same {count_noun(found.unchanged, 'message')}")
    else:
        header = (
            "",
            "collective",
            "dtype",
            "bytes",
            "size",
            "group",
            f"calls per {units[0]}, {before}",
            f"calls per {units[1]}, {after}",
        )
        rows = [
            *(_row("-", c.message, c.calls_per_step, 0.0) for c in found.removed),
            *(_row("+", c.message, 0.0, c.calls_per_step) for c in found.added),
            *(_row("~", c.message, c.calls_before, c.calls_after) for c in found.changed),
        ]
        print_table(header, rows, numbers=header[3:])
        print(
            f"{len(found.added)} added, {len(found.removed)} removed, "
            f"{len(found.changed)} with other calls per {units[0]}, {found.unchanged} unchanged"
        )
    print_table(
        (f"per {units[0]}", before, after, "change"),
        _totals(found.before, found.after),
        numbers=(before, after, "change"),
    )


def _row(mark: str, message: Message, calls_before: float, calls_after: float) -> list[str]:
    from ncclt.core.message import format_bytes

    group = str(message.group_size or "job") + (" over nodes" if message.spans_nodes else "")
    return [
        mark,
        message.collective.value,
        message.dtype,
        f"{message.size_bytes:,}",
        format_bytes(message.size_bytes),
        group,
        f"{calls_before:g}" if calls_before else "-",
        f"{calls_after:g}" if calls_after else "-",
    ]


def _totals(before: Totals, after: Totals) -> list[list[str]]:
    from ncclt.core.message import format_bytes

    def milliseconds(time_us: float | None) -> str:
        return "-" if time_us is None else f"{time_us / 1e3:.2f} ms"

    pairs: list[tuple[str, str, str, float | None, float | None]] = [
        ("messages", str(before.messages), str(after.messages), before.messages, after.messages),
        ("calls", f"{before.calls:g}", f"{after.calls:g}", before.calls, after.calls),
        (
            "bytes",
            format_bytes(round(before.bytes_per_step)),
            format_bytes(round(after.bytes_per_step)),
            before.bytes_per_step,
            after.bytes_per_step,
        ),
    ]
    for name, old, new in (
        ("communication", before.communication_us, after.communication_us),
        ("step time", before.step_time_us, after.step_time_us),
        ("exposed", before.exposed_us, after.exposed_us),
    ):
        if old is not None or new is not None:
            pairs.append((name, milliseconds(old), milliseconds(new), old, new))
    return [[name, first, second, _change(old, new)] for name, first, second, old, new in pairs]


def _change(old: float | None, new: float | None) -> str:
    return "-" if not old or new is None else f"{(new / old - 1) * 100:+.1f} %"
