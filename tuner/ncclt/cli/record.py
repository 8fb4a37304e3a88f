"""`ncclt profile record`: record what a training job sends while it runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ncclt.cli.options import ReplaceWorkload, storage_url
from ncclt.cli.output import report, say
from ncclt.core.plural import count_noun
from ncclt.errors import NccltError, UsageError, reason
from ncclt.profile.record.plan import Method, plan_recording

if TYPE_CHECKING:
    from ncclt.profile.record.session import Recording

CONTEXT_SETTINGS = {"allow_interspersed_args": False}
"""Options after the name of the recorded command belong to it, with or without --."""


def record(
    command: Annotated[list[str], typer.Argument(help="Command of the training, such as: torchrun ... train.py")],
    name: Annotated[str, typer.Option(help="Name of the workload.")],
    steps: Annotated[
        int | None,
        typer.Option(help="Training steps to record; default: 20, with the plugin all."),
    ] = None,
    warmup: Annotated[int | None, typer.Option(help="Warm-up steps before those; default: 10.")] = None,
    method: Annotated[
        Method,
        typer.Option(
            "--with",
            help="Recorder; auto = PyTorch's profiler, else NCCL's log.",
        ),
    ] = Method.AUTO,
    stop_after: Annotated[bool, typer.Option("--stop-after", help="End the job after the recorded steps.")] = False,
    directory: Annotated[
        Path, typer.Option("--dir", help="Path to a folder that all ranks share, for temporary files.")
    ] = Path(),
    keep: Annotated[Path | None, typer.Option(help="Path to a folder to keep raw traces and logs in.")] = None,
    replace: ReplaceWorkload = False,
) -> None:
    """Run a training and record its messages as a workload.

    The training needs no change; its exit code is returned.
    """
    storage = storage_url()
    from ncclt.core.name import check_name
    from ncclt.launch.mpi import is_open_mpi
    from ncclt.nccl.tuner_plugin import find
    from ncclt.profile.record.session import make_folder, run_recording

    check_name(name, "--name")
    _check_free(name, storage=storage, replace=replace)
    folder = make_folder(directory, keep=keep)
    is_safe = True
    try:
        plan = plan_recording(
            command,
            folder=folder,
            environ=os.environ,
            method=method,
            steps=steps,
            warmup=warmup,
            stop_after=stop_after,
            open_mpi=is_open_mpi(command[0], environ=os.environ),
            library=find(),
        )
        for note in plan.notes:
            say(f"ncclt: {note}")
        recording = run_recording(plan, folder, name=name)
        is_safe = keep is not None  # the training was not in vain, whatever fails from here on
        try:
            _store(recording, method=method, storage=storage, replace=replace)
            is_safe = True
        except NccltError as error:
            report(error)  # the exit code of the training still passes through
            say(f"ncclt: nothing was stored; raw files are in {keep or folder}: read them with `ncclt profile import`")
    finally:
        if is_safe:
            _clear(folder, keep)
    raise typer.Exit(recording.exit_code)


def _clear(folder: Path, keep: Path | None) -> None:
    from ncclt.profile.record.session import clear_folder

    try:
        clear_folder(folder, keep=keep)
    except OSError as error:
        say(f"ncclt: cannot move all raw files to {keep}: {reason(error)}; the rest is in {folder}")


def _check_free(name: str, *, storage: str | None, replace: bool) -> None:
    """Refuse a name that is taken, and a store that cannot be written, before the training runs and not hours later."""
    from ncclt.store import open_store

    with open_store(storage) as store:
        store.require_writable()
        taken = [entry for entry in store.workloads.entries() if entry.item.name == name]
    if taken and (taken[0].shipped or not replace):
        raise UsageError(
            f"there is a workload {name!r} already",
            hint="use another --name" if taken[0].shipped else "use another --name, or --replace",
        )


def _store(recording: Recording, *, method: Method, storage: str | None, replace: bool) -> None:
    """Store the recording and print a summary, or the reason that there is none."""
    from ncclt.core.message import format_bytes
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
    cost = recording.overhead
    if cost is None and method is Method.PLUGIN:
        say("ncclt: overhead not measured: the plugin only counts calls")
    elif cost is None:
        say("ncclt: overhead not measured: it needs PyTorch and unrecorded steps after the first three")
    else:
        say(
            f"ncclt: overhead: {cost.share * 100:+.1f} % of the step time while recording "
            f"({cost.outside_us / 1e3:.2f} -> {cost.inside_us / 1e3:.2f} ms; quartiles of unrecorded steps: "
            f"{cost.low_us / 1e3:.2f} to {cost.high_us / 1e3:.2f} ms), then {cost.write_s:.1f} s to write"
        )
    for note in origin.notes:
        say(f"note: {note}")
    say(f"ncclt: stored {workload.name} in {where}; see: ncclt profile show {workload.name}")
