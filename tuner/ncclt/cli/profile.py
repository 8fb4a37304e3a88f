"""`ncclt profile`: the workloads of training jobs."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from ncclt.cli.completion import model_names
from ncclt.cli.configuration import storage_url
from ncclt.cli.exits import report
from ncclt.cli.options import AsJson, Fields, Storing, spread
from ncclt.cli.render import Column, note, print_json, print_table, say
from ncclt.core.duration import format_duration
from ncclt.core.message import Message, format_bytes
from ncclt.core.name import check_name
from ncclt.core.option import Option
from ncclt.core.plural import count_noun
from ncclt.core.workload import RANK_ROLES, MessageCalls, Workload, merge_workloads
from ncclt.errors import NccltError, UsageError, reason
from ncclt.launch.mpi import is_open_mpi
from ncclt.nccl.tuner_plugin import find
from ncclt.profile import read_workload
from ncclt.profile.model.named import ModelRequest, build_model_workload
from ncclt.profile.record.plan import Method, RecordOptions, plan_recording
from ncclt.profile.record.session import Recording, clear_folder, make_folder, run_recording
from ncclt.profile.views.difference import Difference, Totals, WorkloadChange, compare_workloads
from ncclt.profile.views.exposure import bound_gain
from ncclt.profile.views.histogram import SIZE_CLASSES, count_traffic, find_median_sizes, group_by_size
from ncclt.store import open_store, open_to_read

app = typer.Typer(help="List, show, import, record, merge and compare workloads.", no_args_is_help=True)


@app.command("list")
def list_profiles(as_json: AsJson = False) -> None:
    """List shipped and imported workloads."""
    with open_to_read(storage_url()) as store:
        entries = store.workloads.entries()
    if as_json:
        rows = [
            {
                "name": w.name,
                "shipped": shipped,
                "source": w.provenance.source,
                "messages": len(w.messages),
                "bytes_per_step": w.bytes_per_step,
                "whole_file": w.provenance.whole_file,
            }
            for w, shipped in entries
        ]
        print_json({"schema": 1, "workloads": rows})
        return

    def describe_bytes(workload: Workload) -> str:
        return format_bytes(round(workload.bytes_per_step)) + (" in all" if workload.provenance.whole_file else "")

    columns = [
        Column("name", lambda entry: entry[0].name),
        Column("source", lambda entry: entry[0].provenance.source),
        Column("messages", lambda entry: len(entry[0].messages)),
        Column("bytes per step", lambda entry: describe_bytes(entry[0]), right=True),
        Column("collectives", lambda entry: ", ".join(sorted(entry[0].collectives)), drop=1),
        Column("origin", lambda entry: "shipped" if entry[1] else "imported", drop=2),
    ]
    print_table(entries, columns)


_Shown = Annotated[
    str, typer.Argument(help="Name of the workload, see `ncclt profile list`.", autocompletion=model_names)
]
_NewName = Annotated[str, Option("Name of the workload.")]


@app.command("show")
@spread
def show(
    name: _Shown, limit: Annotated[int, Option("Max rows; 0 = all.", least=0)] = 40, as_json: AsJson = False
) -> None:
    """Show the messages of a workload, largest share first."""
    with open_to_read(storage_url()) as store:
        workload = store.workloads.get(name)
    if as_json:
        print_json(profile_document(workload))
    else:
        print_profile(workload, limit=limit)


_GROUP = Option("Keep messages in groups of N ranks; PLACE = inside (a node) or across.", metavar="N[:PLACE]")


@app.command("import")
@spread
def import_files(
    files: Annotated[
        list[Path], typer.Argument(help="Traces of one job: files, one per rank, a folder, a pipe, or - for stdin.")
    ],
    name: _NewName,
    source: Annotated[str | None, Option("Kind of source, such as kineto; default: recognised by content.")] = None,
    steps: Annotated[int | None, Option("Training steps in files that mark none.")] = None,
    group: Annotated[str | None, _GROUP] = None,
    *,
    storing: Storing,
) -> None:
    """Import traces of a training job as a workload.

    Ranks are merged; a call that several of them recorded counts once.
    """
    check_name(name, "--name")
    workload = read_workload(files, name=name, source=source)
    if steps is not None:
        workload = workload.over_steps(steps, f"calls of the whole file, divided by its {steps} steps (--steps)")
    if group is not None:
        workload = workload.of_group(*_parse_group(group))
    _keep(workload, storing)


_PLACES = {"": None, "inside": False, "across": True}
"""Placement of a group in --group -> True if it spans nodes."""


def _parse_group(text: str) -> tuple[int, bool | None]:
    ranks, _, place = text.partition(":")
    if not ranks.isascii() or not ranks.isdigit() or int(ranks) < 2 or place not in _PLACES:
        raise UsageError(f"--group is {text!r}", hint="use a number of ranks, at least 2: 8, 8:inside or 8:across")
    return int(ranks), _PLACES[place]


def _add_to_store(workload: Workload, *, replace: bool) -> str:
    """Store a new workload and return the store as shown to users."""
    with open_store(storage_url()) as store:
        store.workloads.add(workload, replace=replace)
        return store.shown


def _keep(workload: Workload, storing: Storing) -> None:
    """Store a new workload and print it."""
    if not storing.dry_run:
        say(f"ncclt: stored {workload.name} in {_add_to_store(workload, replace=storing.replace)}")
    if storing.as_json:
        print_json(workload)
        return
    print_profile(workload, limit=0 if storing.dry_run else None)
    if not storing.dry_run:
        name = shlex.quote(workload.name)
        if workload.step_time_us and workload.exposed_us is not None:
            print(f"next: `ncclt advise --model {name}` predicts changes that shorten the step")
        print(f"next: `ncclt tune --model {name}` where the job runs: in a Slurm allocation or on its GPUs")


@app.command("merge")
@spread
def merge(
    parts: Annotated[
        list[str], typer.Argument(metavar="A B...", help="Names of the workloads to merge.", autocompletion=model_names)
    ],
    name: Annotated[str, Option("Name of the merged workload.")],
    weights: Annotated[
        str | None, Option("Comma-separated steps of each part per merged step; default: 1 each.")
    ] = None,
    *,
    storing: Storing,
) -> None:
    """Merge workloads, to find one policy for all of them."""
    check_name(name, "--name")
    try:
        if weights is not None and ("_" in weights or not weights.isascii()):  # float() takes 1_0 for 10
            raise ValueError
        numbers = [1.0] * len(parts) if weights is None else [float(word) for word in weights.split(",")]
    except ValueError:
        raise UsageError(f"--weights is {weights!r}", hint="it is one number per workload, for example 3,1") from None
    if len(numbers) != len(parts):
        raise UsageError(
            f"--weights gives {count_noun(len(numbers), 'number')} for {len(parts)} workloads", hint="give one for each"
        )
    storage = storage_url()
    with open_to_read(storage, would_be_made=True) if storing.dry_run else open_store(storage) as store:
        weighted = [(store.workloads.get(part), weight) for part, weight in zip(parts, numbers, strict=True)]
    _keep(merge_workloads(weighted, name=name, created=datetime.now(UTC).date().isoformat()), storing)


DOMINANT_SHARE = 0.95
"""Share of the communication time, or of the bytes where there are no times, that the dominant messages cover."""


def profile_document(workload: Workload) -> dict[str, Any]:
    """Return the workload's document with figures derived from it, for `--json`."""
    document, communication_us = workload.to_document(), workload.communication_us
    dominant = {calls.message for calls in workload.dominant(DOMINANT_SHARE)}
    for row, calls in zip(document["messages"], workload.messages, strict=True):
        row["bytes_per_step"] = calls.bytes_per_step
        row["share"] = calls.bytes_per_step / workload.bytes_per_step
        if communication_us:
            row["time_share"] = _share_of_time(calls, workload)
        row["dominant"] = calls.message in dominant
    bound, half = bound_gain(workload), find_median_sizes(workload)
    per_rank, of_all_ranks = count_traffic(workload)
    return {
        **document,
        "bytes_per_step": workload.bytes_per_step,
        "communication_us": communication_us,
        "dominant_by": "time" if communication_us else "bytes",
        "exposed_share": bound.share if bound else None,
        "wire_bytes_per_rank": per_rank,
        "wire_bytes_total": of_all_ranks,
        "size_classes": [size_class.to_document() for size_class in group_by_size(workload)],
        "half_of": {"calls": half.calls_bytes, "bytes": half.bytes_bytes, "time": half.time_bytes},
    }


def _share_of_time(calls: MessageCalls, workload: Workload) -> float:
    return (calls.recorded_us or 0.0) * calls.calls_per_step / (workload.communication_us or 1.0)


def print_profile(workload: Workload, *, limit: int | None = None) -> None:
    """Print a workload, heaviest messages first.

    Args:
        limit: rows shown at most; 0 = all; None = an outline, for a workload that `ncclt profile show` shows in full.
    """
    origin = workload.provenance
    detail = {
        key: f"{value[: _OUTLINE_LETTERS - 3]}..." if limit is None and len(value) > _OUTLINE_LETTERS else value
        for key, value in origin.detail.items()
    }
    print(", ".join([f"{workload.name}: {origin.source}", *(f"{key} {value}" for key, value in detail.items())]))
    _print_times(workload)
    _print_messages(workload, _OUTLINE_ROWS if limit is None else limit)
    _print_bytes(workload)
    if limit is not None and len(workload.messages) > 1:
        _print_classes(workload)
    for sentence in origin.notes:
        note(sentence)


_OUTLINE_ROWS, _OUTLINE_LETTERS = 10, 80


def _print_times(workload: Workload) -> None:
    origin, communication_us = workload.provenance, workload.communication_us
    if workload.step_time_us:
        steps = f" (median of {count_noun(origin.steps, 'step')})" if origin.steps else ""
        print(f"Step time: {format_duration(workload.step_time_us)}{steps}")
    if communication_us:
        per = " for the whole file" if origin.whole_file else "/step"
        print(f"Communication: {format_duration(communication_us)}{per} (sum of calls, no overlap)")
    bound = bound_gain(workload)
    if bound is not None:
        exposed, share = format_duration(workload.exposed_us or 0.0), f"{bound.share * 100:.1f} %"
        print(f"Exposed communication: {exposed}/step, {share} of the step; no NCCL setting can gain more")
    elif workload.exposed_us is not None:
        print(f"Exposed communication: {format_duration(workload.exposed_us)}, no step marked")
    elif communication_us or workload.step_time_us:
        most = workload.tunable_share
        limit = "and with it the upper bound of the gain" if most is None else f"at most {most * 100:.1f} % of a step"
        print(f"Exposed communication: unknown, {limit}")


def _size(size_bytes: float) -> str:
    """Write a size with three digits."""
    value, units = float(size_bytes), iter(("B", "KiB", "MiB", "GiB", "TiB"))
    unit = next(units)
    while value >= 999.5 and unit != "TiB":
        value, unit = value / 1024, next(units)
    return f"{value:.3g} {unit}"


def _print_messages(workload: Workload, limit: int) -> None:
    by_time, weights = bool(workload.communication_us), workload.weights()
    dominant = {calls.message for calls in workload.dominant(DOMINANT_SHARE)}
    ranked = sorted(zip(weights, workload.messages, strict=True), key=lambda pair: -pair[0])
    shown = ranked[: limit or None]
    columns = [
        Column("", lambda calls: "*" if calls.message in dominant else ""),
        *_message_columns(lambda calls: calls.message),
        Column(f"calls per {workload.unit}", lambda calls: f"{calls.calls_per_step:g}", right=True),
        Column(
            f"bytes per {workload.unit}", lambda calls: format_bytes(round(calls.bytes_per_step)), drop=4, right=True
        ),
        Column("% of bytes", lambda c: f"{c.bytes_per_step / workload.bytes_per_step * 100:.1f}", drop=3, right=True),
        Column("µs per call", lambda calls: f"{calls.recorded_us or 0.0:,.1f}", right=True),
        Column("% of time", lambda calls: f"{_share_of_time(calls, workload) * 100:.1f}", right=True),
    ]
    print_table([calls for _, calls in shown], columns if by_time else columns[:-2])
    unit = "communication time" if by_time else "bytes"
    if len(shown) < len(ranked):
        hidden = sum(weight for weight, _ in ranked[len(shown) :]) / sum(weights)
        print(
            f"... and {count_noun(len(ranked) - len(shown), 'more message')} with {hidden * 100:.1f} % of the {unit}; "
            f"to show all: ncclt profile show {shlex.quote(workload.name)} --limit 0"
        )
    covered = sum(weight for weight, calls in ranked if calls.message in dominant) / sum(weights)
    print(
        f"* dominant: {len(dominant)} of {count_noun(len(ranked), 'message')}, {covered * 100:.1f} % of the {unit} "
        f"of a {workload.unit}"
    )


def _message_columns(find_message: Callable[[Any], Message], *, placed: bool = False) -> list[Column]:
    """Return the columns of a message; `placed` = with the place of its group."""

    def describe_group(message: Message) -> str:
        return str(message.group_size or "job") + (" over nodes" if placed and message.spans_nodes else "")

    return [
        Column("collective", lambda row: find_message(row).collective.value),
        Column("dtype", lambda row: find_message(row).dtype, drop=1),
        Column("bytes", lambda row: find_message(row).size_bytes, drop=5),
        Column("size", lambda row: format_bytes(find_message(row).size_bytes), right=True),
        Column("group", lambda row: describe_group(find_message(row)), drop=2, right=True),
    ]


def _print_bytes(workload: Workload) -> None:
    role = " of this role" if RANK_ROLES in workload.provenance.detail else ""
    per_rank, of_all_ranks = count_traffic(workload)
    ranks = (
        f", {_size(of_all_ranks)} for all {workload.provenance.world_size} ranks" if of_all_ranks is not None else ""
    )
    wire = "bytes on the wire depend on the size of the job"
    if per_rank is not None:
        wire = f"{_size(per_rank)} on the wire{ranks}"
    print(f"{_size(workload.bytes_per_step)} per rank{role} {workload.per} ({wire})")


def _print_classes(workload: Workload) -> None:
    """Print the shares of each collective and size class, and the median size by calls and by bytes."""
    small, medium = (format_bytes(below) for _, below in SIZE_CLASSES[:2])
    limits = {"small": f"< {small}", "medium": f"< {medium}", "large": f">= {medium}"}
    calls, communication_us = sum(c.calls_per_step for c in workload.messages), workload.communication_us
    columns = [
        Column("collective", lambda row: row.collective.value),
        Column("size", lambda row: limits[row.name]),
        Column("% of calls", lambda row: f"{row.calls / calls * 100:.1f}", right=True),
        Column("% of bytes", lambda row: f"{row.bytes_per_step / workload.bytes_per_step * 100:.1f}", right=True),
        Column("% of time", lambda row: f"{(row.time_us or 0.0) / (communication_us or 1.0) * 100:.1f}", right=True),
    ]
    print_table(group_by_size(workload), columns if communication_us else columns[:-1])
    half = find_median_sizes(workload)
    by_time = f", {_size(half.time_bytes)} by time" if half.time_bytes else ""
    print(f"Median size: {_size(half.calls_bytes)} by calls, {_size(half.bytes_bytes)} by bytes{by_time}")


@app.command("model")
@spread
def model(
    name: Annotated[
        str, typer.Argument(metavar="MODEL", help="Model of torchvision, timm or transformers (bert), or LIBRARY:NAME.")
    ],
    store: Annotated[str | None, Option("Store the workload as NAME.", metavar="NAME")] = None,
    *,
    request: ModelRequest,
    storing: Annotated[Storing, Fields("replace as_json")],
) -> None:
    """Compute the messages of a training step from a model's code.

    Needs no weights, GPU or network; buckets are PyTorch's own.
    """
    if store is not None:
        check_name(store, "--store")
    request, created = replace(request, model=name), datetime.now(UTC).date().isoformat()
    workload = build_model_workload(request, name=store or name, created=created)
    shown = "" if store is None else _add_to_store(workload, replace=storing.replace)
    if storing.as_json:
        print_json(profile_document(workload))
    else:
        print_profile(workload, limit=0 if store is None else None)
    if store is not None:
        say(f"ncclt: stored {store} in {shown}; tune it with: ncclt tune --model {store}")


_OF_RECORDING = {
    "steps": Option("Training steps to record; default: 20, with the plugin all."),
    "warmup": Option("Warm-up steps before those; default: 10."),
    "method": Option("Recorder; auto = PyTorch's profiler, else NCCL's log.", flag="--with"),
    "stop_after": Option("End the job after the recorded steps."),
}
"""Options for the scope of a recording."""


# Options after the name of the recorded command belong to it, with or without --.
@app.command("record", context_settings={"allow_interspersed_args": False})
@spread
def record(
    command: Annotated[list[str], typer.Argument(help="Command of the training, such as: torchrun ... train.py")],
    name: _NewName,
    *,
    scope: Annotated[RecordOptions, Fields(" ".join(_OF_RECORDING), _OF_RECORDING)],
    directory: Annotated[
        Path, Option("Path to a folder that all ranks share, for temporary files.", flag="--dir")
    ] = Path(),
    keep: Annotated[Path | None, Option("Path to a folder to keep raw traces and logs in.")] = None,
    storing: Annotated[Storing, Fields("replace")],
) -> None:
    """Run a training and record its messages as a workload.

    The training needs no change; its exit code is returned.
    """
    check_name(name, "--name")
    _check_free(name, replace=storing.replace)
    folder = make_folder(directory, keep=keep)
    is_safe = True
    try:
        open_mpi = is_open_mpi(command[0], environ=os.environ)
        plan = plan_recording(command, scope, folder=folder, environ=os.environ, open_mpi=open_mpi, library=find())
        for sentence in plan.notes:
            say(f"ncclt: {sentence}")
        recording = run_recording(plan, folder, name=name)
        is_safe = keep is not None  # the training was not in vain, whatever fails from here on
        try:
            _store(recording, method=scope.method, replace=storing.replace)
            is_safe = True
        except NccltError as error:
            report(error)  # the exit code of the training still passes through
            say(f"ncclt: nothing was stored; raw files are in {keep or folder}: read them with `ncclt profile import`")
    finally:
        if is_safe:
            try:
                clear_folder(folder, keep=keep)
            except OSError as error:
                say(f"ncclt: cannot move all raw files to {keep}: {reason(error)}; the rest is in {folder}")
    raise typer.Exit(recording.exit_code)


def _check_free(name: str, *, replace: bool) -> None:
    """Refuse a name that is taken, and a store that cannot be written, before the training runs and not hours later."""
    with open_store(storage_url()) as store:
        store.require_writable()
        is_shipped = {workload.name: shipped for workload, shipped in store.workloads.entries()}.get(name)
    if is_shipped or (is_shipped is not None and not replace):
        hint = "use another --name" if is_shipped else "use another --name, or --replace"
        raise UsageError(f"there is a workload {name!r} already", hint=hint)


def _store(recording: Recording, *, method: Method, replace: bool) -> None:
    """Store the recording and print a summary, or the reason that there is none."""
    for failure in recording.failures:
        say(f"ncclt: the recording failed in some ranks, the training continued: {failure}")
    workload = recording.workload
    if workload is None:
        if recording.exit_code:
            say(f"ncclt: the command failed with exit code {recording.exit_code}")
        say(f"ncclt: nothing was stored: {recording.reason}")
        if recording.hint:
            say(f"  hint: {recording.hint}")
        return
    shown = _add_to_store(workload, replace=replace)
    origin = workload.provenance
    steps = count_noun(origin.steps, "step") if origin.steps else "an unknown number of steps"
    size = format_bytes(round(workload.bytes_per_step))
    say(
        f"ncclt: recorded {steps} of {count_noun(len(origin.ranks_read), 'rank')}: "
        f"{count_noun(len(workload.messages), 'message')}, {size} {workload.per}"
    )
    if recording.overhead is None:
        why = "it needs PyTorch and unrecorded steps after the first three"
        why = "the plugin only counts calls" if method is Method.PLUGIN else why
        say(f"ncclt: overhead not measured: {why}")
    for remark in origin.notes:
        say(f"note: {remark}")
    say(f"ncclt: stored {workload.name} in {shown}; see: ncclt profile show {workload.name}")


@app.command("diff")
def diff(
    before: Annotated[str, typer.Argument(metavar="A", help="Name of a workload.", autocompletion=model_names)],
    after: Annotated[
        str, typer.Argument(metavar="B", help="Name of the workload to compare with A.", autocompletion=model_names)
    ],
    as_json: AsJson = False,
) -> None:
    """Compare the messages of two workloads."""
    with open_to_read(storage_url()) as store:
        first, second = store.workloads.get(before), store.workloads.get(after)
    difference = compare_workloads(first, second)
    if first.unit != second.unit:
        say(f"ncclt: calls cannot be compared: {before} counts those of a {first.unit}, {after} of a {second.unit}")
    if as_json:
        print_json({"schema": 1, "before": before, "after": after, **difference.to_document()})
        return
    _print_changes(difference, first, second)
    totals = _compare_totals(difference.before, difference.after)
    columns = [Column(title, right=True) for title in (before, after, "change")]
    print_table(totals, [Column(f"per {first.unit}"), *columns])


def _print_changes(difference: Difference, before: Workload, after: Workload) -> None:
    """Print the messages that differ: `+` only in B, `-` only in A, `~` in both with other calls."""
    if difference.is_empty:
        print(f"{before.name} and {after.name} send the same {count_noun(difference.unchanged, 'message')}")
        return
    changes = [*difference.removed, *difference.added, *difference.changed]

    def mark(change: WorkloadChange) -> str:
        return "~" if change.calls_before and change.calls_after else "-" if change.calls_before else "+"

    def describe_calls(calls_per_step: float) -> str | None:
        return f"{calls_per_step:g}" if calls_per_step else None

    columns = [
        Column("", mark),
        *_message_columns(lambda change: change.message, placed=True),
        Column(f"calls per {before.unit}, {before.name}", lambda c: describe_calls(c.calls_before), right=True),
        Column(f"calls per {after.unit}, {after.name}", lambda c: describe_calls(c.calls_after), right=True),
    ]
    print_table(changes, columns)
    print(
        f"{len(difference.added)} added, {len(difference.removed)} removed, {len(difference.changed)} with other calls "
        f"per {before.unit}, {difference.unchanged} unchanged"
    )


def _compare_totals(before: Totals, after: Totals) -> list[tuple[str, str, str, str]]:
    def describe_bytes(size_bytes: float) -> str:
        return format_bytes(round(size_bytes))

    def describe_time(time_us: float | None) -> str:
        return "-" if time_us is None else f"{time_us / 1e3:.2f} ms"

    rows: list[tuple[str, float | None, float | None, Callable[[Any], str]]] = [
        ("messages", before.messages, after.messages, str),
        ("calls", before.calls, after.calls, lambda calls: f"{calls:g}"),
        ("bytes", before.bytes_per_step, after.bytes_per_step, describe_bytes),
        ("communication", before.communication_us, after.communication_us, describe_time),
        ("step time", before.step_time_us, after.step_time_us, describe_time),
        ("exposed", before.exposed_us, after.exposed_us, describe_time),
    ]
    return [
        (name, write(old), write(new), "-" if not old or new is None else f"{(new / old - 1) * 100:+.1f} %")
        for name, old, new, write in rows
        if old is not None or new is not None
    ]
