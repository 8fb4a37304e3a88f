"""One recording from its beginning to its end: folder, command, reading, clearing up."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from ncclt.core.workload import Workload
from ncclt.errors import TraceError, UsageError
from ncclt.profile import read_workload
from ncclt.profile.record.command import run_foreground
from ncclt.profile.record.plan import FOLDERS, RAW_FOLDERS, Method, RecordPlan
from ncclt.profile.record.plugin import read_plugin_reports
from ncclt.profile.record.ranks import Overhead, explain_missing_trace, measure_overhead, read_reports


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """Outcome of a recording.

    Attributes:
        exit_code: of the command, as a shell gives it.
        workload: what was recorded, None where nothing could be read.
        reason: why there is no workload, empty where there is one.
        hint: what to do about it.
        overhead: what the profiler cost, None where it was not measured.
        failures: what failed in some ranks while others were recorded.
    """

    exit_code: int
    workload: Workload | None = None
    reason: str = ""
    hint: str = ""
    overhead: Overhead | None = None
    failures: tuple[str, ...] = ()


def make_folder(base: Path, *, keep: Path | None) -> Path:
    """Make the folder in which the ranks of a job write, for this user alone.

    Args:
        base: a folder that all ranks share.
        keep: where the raw files will be moved to; must be empty or not there yet.

    Raises:
        UsageError: `base` cannot be written to, or `keep` is not empty.
    """
    if keep is not None and keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
        raise UsageError(f"{keep} is there already and not an empty folder", hint="name another folder with --keep")
    folder = None
    try:
        # mkdtemp gives 0700: traces show the paths and shapes of a private model.
        folder = Path(tempfile.mkdtemp(prefix=".ncclt-record-", dir=base.resolve()))
        for sub in FOLDERS:
            (folder / sub).mkdir()
    except OSError as error:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        hint = "name a folder that all ranks share with --dir"
        raise UsageError(f"cannot write to {base}: {error.strerror or error}", hint=hint) from error
    return folder


def clear_folder(folder: Path, *, keep: Path | None) -> None:
    """Remove the folder, and move the raw files out of it before where they shall be kept.

    Raises:
        OSError: they cannot be moved; those that were not stay where they are.
    """
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        for name in RAW_FOLDERS:
            if (folder / name).exists():
                shutil.move(folder / name, keep / name)
    # A rank that outlives its launcher may still write into it: what is left then is no reason to fail.
    shutil.rmtree(folder, ignore_errors=True)


Start = Callable[[RecordPlan], int]
"""Runs the command of a plan to its end and returns its exit code."""


def in_foreground(plan: RecordPlan) -> int:
    """Run the command with our terminal, inputs and outputs; see `run_foreground`."""
    return run_foreground(plan.argv, environ=os.environ | dict(plan.set_env))


def run_recording(plan: RecordPlan, folder: Path, *, name: str, start: Start = in_foreground) -> Recording:
    """Run a planned command and read what its ranks wrote.

    Args:
        plan: made for this folder.
        folder: the recording's folder, of `make_folder`.
        name: name of the workload.
        start: runs the command.

    Raises:
        UsageError: the command cannot be started.
    """
    try:
        for path, content in plan.files:
            (folder / path).write_text(content, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write to {folder}: {error.strerror}", hint="is its disk full?") from error
    exit_code = start(plan)
    try:
        return _read(plan, folder, name=name, exit_code=exit_code)
    except OSError as error:
        return Recording(
            exit_code=exit_code,
            reason=f"what the ranks wrote cannot be read: {error}",
            hint=f"did the command clean up {folder.parent}?",
        )


def _read(plan: RecordPlan, folder: Path, *, name: str, exit_code: int) -> Recording:
    """Read the traces, else the logs, and say why where neither can be read."""
    reports = read_reports(folder)
    failures = tuple(dict.fromkeys(failure for report in reports for failure in report.failures))
    if plan.options.method is Method.PLUGIN:
        try:
            steps = plan.options.steps
            workload = read_plugin_reports(folder, reports, name=name, steps=steps, exit_code=exit_code)
        except TraceError as error:
            return Recording(exit_code=exit_code, reason=error.message, hint=error.hint, failures=failures)
        notes: tuple[str, ...] = ()
        if not workload.provenance.steps:
            notes = ("no optimizer of PyTorch reported its steps: give their number with --steps",)
        return Recording(exit_code=exit_code, workload=_add_notes(workload, notes), failures=failures)
    reasons: list[tuple[str, str]] = []
    traces = sorted((folder / "traces").glob("*.json")) if plan.files else []
    if traces:
        try:
            workload = read_workload(traces, name=name, source="kineto")
        except TraceError as error:
            reasons.append((error.message, error.hint))
        else:
            cost = measure_overhead(reports)
            workload = _add_cost(workload, cost, cut_short=any(r.state == "cut short" for r in reports))
            return Recording(exit_code=exit_code, workload=workload, overhead=cost, failures=failures)
    elif plan.files:
        reasons.append(explain_missing_trace(folder, reports))
    if "NCCL_DEBUG_FILE" in dict(plan.set_env):
        logs = [path for path in sorted((folder / "nccl").iterdir()) if path.stat().st_size]
        try:
            if not logs:
                hint = "does the job use NCCL, and do its hosts share --dir?"
                raise TraceError("no process wrote an NCCL log", hint=hint)
            workload = read_workload(logs, name=name, source="nccl_log")
        except TraceError as error:
            reasons.append((error.message, error.hint))
        else:
            notes = tuple(f"read from NCCL's log, for there is no usable trace: {reason}" for reason, _hint in reasons)
            return Recording(exit_code=exit_code, workload=_add_notes(workload, notes))
    return Recording(
        exit_code=exit_code,
        reason="; ".join(reason for reason, _hint in reasons),
        hint="; ".join(dict.fromkeys(hint for _reason, hint in reasons if hint)),
    )


def _add_cost(workload: Workload, cost: Overhead | None, *, cut_short: bool) -> Workload:
    notes = []
    if cost is not None:
        notes.append(cost.describe(workload.step_time_us or cost.inside_us))
    if cut_short:
        notes.append("the program ended inside the recorded window: complete steps alone are counted")
    return _add_notes(workload, tuple(notes))


def _add_notes(workload: Workload, notes: tuple[str, ...]) -> Workload:
    origin = workload.provenance
    detail = {**origin.detail, "recorded_by": "ncclt profile record"}
    return replace(workload, provenance=replace(origin, detail=detail, notes=(*origin.notes, *notes)))
