"""What a recording needs, decided before anything is started: files, variables, command line.

The recording's folder, shared by all ranks:

    inject/sitecustomize.py      on PYTHONPATH: imported by every Python process at its start
    inject/_ncclt_recording/     the hook itself
    inject/recording.json        warm-up, steps, stop-after, times-only
    python-started               written by the first Python process of the job
    ranks/HOST.PID.json          one journal per process that loaded PyTorch
    traces/rankN.json            one Kineto trace per rank; empty where only step times are taken
    nccl/HOST.PID.log            one NCCL log per process
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib.resources import files
from pathlib import Path

from ncclt.errors import UsageError
from ncclt.recording.launchers import forwarded


class Method(StrEnum):
    """How the messages are seen: PyTorch's profiler, NCCL's log, or both with the profiler preferred."""

    AUTO = "auto"
    TORCH = "torch"
    NCCL_LOG = "nccl-log"


RAW_FOLDERS = ("ranks", "traces", "nccl")
"""Where the ranks write."""

FOLDERS = ("inject", "inject/_ncclt_recording", *RAW_FOLDERS)
"""All folders inside the recording's folder."""

NCCL_LOG_SUBSYSTEMS = "INIT,ENV,COLL,TUNING"
"""Calls with sizes, the communicators' ranks, and what was set by variables (NCCL src/debug.cc, src/enqueue.cc)."""

_INJECTED = ("__init__", "journal", "recorder", "start", "timing", "trace", "watch", "window")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordPlan:
    """A recording, decided but not begun.

    Attributes:
        argv: the command, told to forward the variables where its launcher forwards none by itself.
        set_env: variables added to its environment, sorted.
        files: files of the recording's folder, relative path -> content.
        notes: what the user should know beforehand, one sentence each.
    """

    argv: tuple[str, ...]
    set_env: tuple[tuple[str, str], ...]
    files: tuple[tuple[str, str], ...]
    notes: tuple[str, ...] = ()


def plan_recording(
    argv: Sequence[str],
    *,
    folder: Path,
    environ: Mapping[str, str],
    method: Method,
    steps: int = 20,
    warmup: int = 10,
    stop_after: bool = False,
    times_only: bool = False,
    open_mpi: bool = False,
) -> RecordPlan:
    """Decide how a command is started so that it records itself.

    Args:
        argv: the command as the user gave it.
        folder: the recording's folder, absolute.
        environ: the environment that the command would inherit.
        method: how the messages are seen.
        steps: training steps to record.
        warmup: steps before them.
        stop_after: end the job after the window.
        times_only: take the times of the steps and no trace of them.
        open_mpi: the command is Open MPI's launcher.

    Raises:
        UsageError: no command, impossible numbers, options that do not go together, or a folder name that a variable
            cannot carry.
    """
    if not argv:
        raise UsageError("no command to record", hint="put it behind --: ncclt profile record --name N -- torchrun ...")
    if steps < 1 or warmup < 1:
        raise UsageError(
            f"--steps and --warmup must be at least 1, not {steps} and {warmup}",
            hint="the first step is never typical: DDP sends other buckets in it",
        )
    if stop_after and method is Method.NCCL_LOG:
        raise UsageError("--stop-after needs the steps of PyTorch", hint="leave out --with nccl-log")
    if os.pathsep in str(folder) or "%" in str(folder):
        raise UsageError(f"{folder} cannot be used: its name has a ':' or a '%'", hint="name another place with --dir")
    set_env: dict[str, str] = {}
    contents: dict[str, str] = {}
    notes: list[str] = []
    if method is not Method.NCCL_LOG:
        set_env |= _torch_variables(folder / "inject", environ)
        settings: dict[str, object] = {"steps": steps, "warmup": warmup, "stop_after": stop_after}
        contents |= _injected_files(settings | ({"times_only": True} if times_only else {}))
    if method is Method.NCCL_LOG or (method is Method.AUTO and "NCCL_DEBUG" not in environ):
        set_env |= _log_variables(folder / "nccl")
    elif method is Method.AUTO:
        notes.append("NCCL_DEBUG is set already and stays as it is: no NCCL log is recorded beside the traces")
    if method is Method.NCCL_LOG:
        if "NCCL_DEBUG" in environ:
            notes.append("your NCCL_DEBUG and NCCL_DEBUG_FILE are replaced while this command runs")
        notes.append("the log covers the whole run and grows by about 150 bytes per call: a few hundred steps suffice")
    final_argv, more_env = forwarded(tuple(argv), tuple(sorted(set_env)), environ=environ, open_mpi=open_mpi)
    return RecordPlan(
        argv=final_argv,
        set_env=tuple(sorted((set_env | more_env).items())),
        files=tuple(sorted(contents.items())),
        notes=tuple(notes),
    )


def _torch_variables(inject: Path, environ: Mapping[str, str]) -> dict[str, str]:
    before = environ.get("PYTHONPATH", "")
    variables = {"PYTHONPATH": f"{inject}{os.pathsep}{before}" if before else str(inject)}
    if "KINETO_LOG_LEVEL" not in environ:
        # Some versions (seen: torch 2.13) write their stages to stderr, which belongs to the command. 6 is above the
        # last level of any version (libkineto/src/ILoggerObserver.h); errors show by what a trace lacks.
        variables["KINETO_LOG_LEVEL"] = "6"
    return variables


def _log_variables(folder: Path) -> dict[str, str]:
    return {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": NCCL_LOG_SUBSYSTEMS,
        "NCCL_DEBUG_FILE": f"{folder}/%h.%p.log",  # NCCL puts in host and process
    }


def _injected_files(settings: Mapping[str, object]) -> dict[str, str]:
    source = files("ncclt.recording")
    injected = {
        f"inject/_ncclt_recording/{name}.py": (source / "injected" / f"{name}.py").read_text(encoding="utf-8")
        for name in _INJECTED
    }
    return injected | {
        "inject/sitecustomize.py": (source / "entry.py").read_text(encoding="utf-8"),
        "inject/recording.json": json.dumps(dict(settings)),
    }
