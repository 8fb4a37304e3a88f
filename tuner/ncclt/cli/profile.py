"""`ncclt profile`: the workloads of training jobs."""

from __future__ import annotations

import os
import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ncclt.cli.completion import complete_from, model_names
from ncclt.cli.configuration import storage_url
from ncclt.cli.options import AsJson, Fields, Storing, spread
from ncclt.cli.output import note, print_json, print_table, report, say
from ncclt.core.duration import format_duration
from ncclt.core.message import format_bytes
from ncclt.core.option import Option
from ncclt.core.plural import count_noun
from ncclt.core.workload import RANK_ROLES
from ncclt.errors import NccltError, UsageError, reason
from ncclt.profile.record.plan import Method, RecordOptions, plan_recording
from ncclt.profile.views.exposure import bound_gain
from ncclt.profile.views.histogram import SIZE_CLASSES, count_traffic, find_median_sizes, group_by_size

if TYPE_CHECKING:
    from ncclt.core.message import Message
    from ncclt.core.workload import MessageCalls, Workload
    from ncclt.profile.record.session import Recording
    from ncclt.profile.views.difference import Difference, Totals


app = typer.Typer(help="List, show, import, record, merge and compare workloads.", no_args_is_help=True)


@app.callback()
def profile() -> None:
    """List, show, import, record, merge and compare workloads."""


@app.command("list")
def list_profiles(as_json: AsJson = False) -> None:
    """List shipped and imported workloads."""
    from ncclt.store import open_to_read

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
    print_table(
        ("name", "source", "messages", "bytes per step", "collectives", "origin"),
        [
            (
                w.name,
                w.provenance.source,
                str(len(w.messages)),
                format_bytes(round(w.bytes_per_step)) + (" in all" if w.provenance.whole_file else ""),
                ", ".join(sorted(w.collectives)),
                "shipped" if shipped else "imported",
            )
            for w, shipped in entries
        ],
        numbers=("messages", "bytes per step"),
    )


@app.command("show")
def show(
    name: Annotated[
        str, typer.Argument(help="Name of the workload, see `ncclt profile list`.", autocompletion=model_names)
    ],
    limit: Annotated[int, typer.Option(help="Max rows; 0 = all.", min=0)] = 40,
    as_json: AsJson = False,
) -> None:
    """Show the messages of a workload, largest share first."""
    from ncclt.store import open_to_read

    with open_to_read(storage_url()) as store:
        workload = store.workloads.get(name)
    if as_json:
        print_json(profile_document(workload))
    else:
        print_profile(workload, limit=limit)


@app.command("import")
@spread
def import_files(
    files: Annotated[
        list[Path], typer.Argument(help="Traces of one job: files, one per rank, a folder, a pipe, or - for stdin.")
    ],
    name: Annotated[str, typer.Option(help="Name of the workload.")],
    source: Annotated[
        str | None, typer.Option(help="Kind of source, such as kineto; default: recognised by content.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Training steps in files that mark none.")] = None,
    group: Annotated[
        str | None,
        typer.Option(
            metavar="N[:PLACE]", help="Keep messages in groups of N ranks; PLACE = inside (a node) or across."
        ),
    ] = None,
    *,
    storing: Storing,
) -> None:
    """Import traces of a training job as a workload.

    Ranks are merged; a call that several of them recorded counts once.
    """
    from ncclt.core.name import check_name
    from ncclt.profile import read_workload

    check_name(name, "--name")
    workload = read_workload(files, name=name, source=source)
    if steps is not None:
        workload = workload.over_steps(steps, f"calls of the whole file, divided by its {steps} steps (--steps)")
    if group is not None:
        workload = workload.of_group(*_parse_group(group))
    _keep(workload, storage_url(), storing)


_PLACES = {"": None, "inside": False, "across": True}
"""Placement of a group in --group -> True if it spans nodes."""


def _parse_group(text: str) -> tuple[int, bool | None]:
    ranks, _, place = text.partition(":")
    if not ranks.isascii() or not ranks.isdigit() or int(ranks) < 2 or place not in _PLACES:
        raise UsageError(f"--group is {text!r}", hint="use a number of ranks, at least 2: 8, 8:inside or 8:across")
    return int(ranks), _PLACES[place]


def _keep(workload: Workload, storage: str | None, storing: Storing) -> None:
    """Store a new workload and print it."""
    from ncclt.store import open_store

    if not storing.dry_run:
        with open_store(storage) as store:
            store.workloads.add(workload, replace=storing.replace)
            say(f"ncclt: stored {workload.name} in {store.shown}")
    if storing.as_json:
        print_json(workload.to_document())
    else:
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
    name: Annotated[str, typer.Option(help="Name of the merged workload.")],
    weights: Annotated[
        str | None, typer.Option(help="Comma-separated steps of each part per merged step; default: 1 each.")
    ] = None,
    *,
    storing: Storing,
) -> None:
    """Merge workloads, to find one policy for all of them."""
    storage = storage_url()

    from ncclt.core.name import check_name
    from ncclt.core.workload import merge_workloads
    from ncclt.store import open_store, open_to_read

    check_name(name, "--name")
    try:
        if weights is not None and ("_" in weights or not weights.isascii()):  # float() takes 1_0 for 10
            raise ValueError
        numbers = [1.0] * len(parts) if weights is None else [float(word) for word in weights.split(",")]
    except ValueError:
        raise UsageError(f"--weights is {weights!r}", hint="it is one number per workload, for example 3,1") from None
    if len(numbers) != len(parts):
        raise UsageError(
            f"--weights gives {len(numbers)} number{'s' * (len(numbers) != 1)} for {len(parts)} workloads",
            hint="give one for each",
        )
    with open_to_read(storage, would_be_made=True) if storing.dry_run else open_store(storage) as store:
        found = [(store.workloads.get(part), weight) for part, weight in zip(parts, numbers, strict=True)]
    workload = merge_workloads(found, name=name, created=datetime.now(UTC).date().isoformat())
    _keep(workload, storage, storing)


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
    bound, half = bound_gain(workload), find_median_sizes(workload)
    per_rank, of_all_ranks = count_traffic(workload)
    return {
        **document,
        "bytes_per_step": total,
        "communication_us": communication_us,
        "dominant_by": "time" if communication_us else "bytes",
        "exposed_share": bound.share if bound else None,
        "wire_bytes_per_rank": per_rank,
        "wire_bytes_total": of_all_ranks,
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


def print_profile(workload: Workload, *, limit: int | None = None) -> None:
    """Print a workload, heaviest messages first.

    Args:
        limit: rows shown at most; 0 = all; None = an outline, for a workload that `ncclt profile show` shows in full.
    """
    origin = workload.provenance
    detail = ", ".join(f"{key} {_shorten(value) if limit is None else value}" for key, value in origin.detail.items())
    print(f"{workload.name}: {origin.source}{f', {detail}' if detail else ''}")
    _print_times(workload)
    _print_messages(workload, _OUTLINE_ROWS if limit is None else limit)
    _print_bytes(workload)
    if limit is not None and len(workload.messages) > 1:
        _print_classes(workload)
    for sentence in origin.notes:
        note(sentence)


_OUTLINE_ROWS, _OUTLINE_LETTERS = 10, 80


def _shorten(value: str) -> str:
    """Cut a list of files or of other things for an outline."""
    return value if len(value) <= _OUTLINE_LETTERS else f"{value[: _OUTLINE_LETTERS - 3]}..."


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
        bound_words = (
            "and with it the upper bound of the gain" if most is None else f"at most {most * 100:.1f} % of a step"
        )
        print(f"Exposed communication: unknown, {bound_words}")


def _size(size_bytes: float) -> str:
    """Write a size with three digits."""
    value, units = float(size_bytes), iter(("B", "KiB", "MiB", "GiB", "TiB"))
    unit = next(units)
    while value >= 999.5 and unit != "TiB":
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
        print(
            f"... and {count_noun(more, 'more message')} with {rest * 100:.1f} % of the {unit}; to show all: "
            f"ncclt profile show {shlex.quote(workload.name)} --limit 0"
        )
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
    per_rank, of_all_ranks = count_traffic(workload)
    if per_rank is None:
        wire = "bytes on the wire depend on the size of the job"
    else:
        wire = f"{_size(per_rank)} on the wire"
        if of_all_ranks is not None:
            wire += f", {_size(of_all_ranks)} for all {workload.provenance.world_size} ranks"
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


@app.command("model")
@spread
def model(
    name: Annotated[
        str, typer.Argument(metavar="MODEL", help="Model of torchvision, timm or transformers (bert), or LIBRARY:NAME.")
    ],
    dtype: Annotated[str, typer.Option(help="Type of parameters and gradients, such as bf16.")] = "float32",
    reduce_dtype: Annotated[
        str, typer.Option(help="Type of reduced gradients under fsdp and zero3; default: --dtype.", show_default=False)
    ] = "",
    bucket_cap_mb: Annotated[float, typer.Option(help="Size of DDP's buckets, MiB.")] = 25,
    sharding: Annotated[
        str,
        typer.Option(
            help="ddp, fsdp (one unit per block) or zero3.", autocompletion=complete_from("ddp", "fsdp", "zero3")
        ),
    ] = "ddp",
    group_size: Annotated[int, typer.Option(help="Ranks per group; 0 = all ranks of the job.")] = 0,
    config: Annotated[Path | None, typer.Option(help="Path to config.json of a transformers model.")] = None,
    store: Annotated[str | None, typer.Option("--store", metavar="NAME", help="Store the workload as NAME.")] = None,
    *,
    storing: Annotated[Storing, Fields("replace as_json")],
) -> None:
    """Compute the messages of a training step from a model's code.

    Needs no weights, GPU or network; buckets are PyTorch's own.
    """
    from ncclt.core.name import check_name
    from ncclt.profile.model.named import ModelRequest, Sharding, build_model_workload

    choices = [kind.value for kind in Sharding]
    if sharding not in choices:
        raise UsageError(f"unknown sharding {sharding!r}", hint=f"one of {', '.join(choices)}")
    if store is not None:
        check_name(store, "--store")
    request = ModelRequest(
        model=name,
        config=config,
        dtype=dtype,
        reduce_dtype=reduce_dtype,
        bucket_cap_mb=bucket_cap_mb,
        sharding=Sharding(sharding),
        group_size=group_size,
    )
    workload = build_model_workload(request, name=store or name, created=datetime.now(UTC).date().isoformat())
    where = ""
    if store is not None:
        from ncclt.store import open_store

        with open_store(storage_url()) as opened:
            opened.workloads.add(workload, replace=storing.replace)
            where = opened.shown

    if storing.as_json:
        print_json(profile_document(workload))
    else:
        print_profile(workload, limit=0 if store is None else None)
    if store is not None:
        say(f"ncclt: stored {store} in {where}; tune it with: ncclt tune --model {store}")


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
    name: Annotated[str, typer.Option(help="Name of the workload.")],
    *,
    scope: Annotated[RecordOptions, Fields(" ".join(_OF_RECORDING), _OF_RECORDING)],
    directory: Annotated[
        Path, typer.Option("--dir", help="Path to a folder that all ranks share, for temporary files.")
    ] = Path(),
    keep: Annotated[Path | None, typer.Option(help="Path to a folder to keep raw traces and logs in.")] = None,
    storing: Annotated[Storing, Fields("replace")],
) -> None:
    """Run a training and record its messages as a workload.

    The training needs no change; its exit code is returned.
    """
    storage = storage_url()
    from ncclt.core.name import check_name
    from ncclt.launch.mpi import is_open_mpi
    from ncclt.nccl.tuner_plugin import find
    from ncclt.profile.record.session import clear_folder, make_folder, run_recording

    check_name(name, "--name")
    _check_free(name, storage=storage, replace=storing.replace)
    folder = make_folder(directory, keep=keep)
    is_safe = True
    try:
        plan = plan_recording(
            command,
            scope,
            folder=folder,
            environ=os.environ,
            open_mpi=is_open_mpi(command[0], environ=os.environ),
            library=find(),
        )
        for note in plan.notes:
            say(f"ncclt: {note}")
        recording = run_recording(plan, folder, name=name)
        is_safe = keep is not None  # the training was not in vain, whatever fails from here on
        try:
            _store(recording, method=scope.method, storage=storage, replace=storing.replace)
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


def _check_free(name: str, *, storage: str | None, replace: bool) -> None:
    """Refuse a name that is taken, and a store that cannot be written, before the training runs and not hours later."""
    from ncclt.store import open_store

    with open_store(storage) as store:
        store.require_writable()
        taken = {workload.name: shipped for workload, shipped in store.workloads.entries()}
    if name in taken and (taken[name] or not replace):
        raise UsageError(
            f"there is a workload {name!r} already",
            hint="use another --name" if taken[name] else "use another --name, or --replace",
        )


def _store(recording: Recording, *, method: Method, storage: str | None, replace: bool) -> None:
    """Store the recording and print a summary, or the reason that there is none."""
    from ncclt.store import open_store

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
    with open_store(storage) as store:
        store.workloads.add(workload, replace=replace)
        where = store.shown
    origin = workload.provenance
    steps = count_noun(origin.steps, "step") if origin.steps else "an unknown number of steps"
    size = format_bytes(round(workload.bytes_per_step))
    say(
        f"ncclt: recorded {steps} of {count_noun(len(origin.ranks_read), 'rank')}: "
        f"{count_noun(len(workload.messages), 'message')}, {size} {workload.per}"
    )
    if recording.overhead is None and method is Method.PLUGIN:
        say("ncclt: overhead not measured: the plugin only counts calls")
    elif recording.overhead is None:
        say("ncclt: overhead not measured: it needs PyTorch and unrecorded steps after the first three")
    for remark in origin.notes:
        say(f"note: {remark}")
    say(f"ncclt: stored {workload.name} in {where}; see: ncclt profile show {workload.name}")


@app.command("diff")
def diff(
    before: Annotated[str, typer.Argument(metavar="A", help="Name of a workload.", autocompletion=model_names)],
    after: Annotated[
        str, typer.Argument(metavar="B", help="Name of the workload to compare with A.", autocompletion=model_names)
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
            *(_diff_row("-", c.message, c.calls_per_step, 0.0) for c in found.removed),
            *(_diff_row("+", c.message, 0.0, c.calls_per_step) for c in found.added),
            *(_diff_row("~", c.message, c.calls_before, c.calls_after) for c in found.changed),
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


def _diff_row(mark: str, message: Message, calls_before: float, calls_after: float) -> list[str]:

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
    return [
        [name, first, second, "-" if not old or new is None else f"{(new / old - 1) * 100:+.1f} %"]
        for name, first, second, old, new in pairs
    ]
