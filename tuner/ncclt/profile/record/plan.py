"""Plan of a recording, made before anything is started: files, variables, command line.

The recording's folder, shared by all ranks:

    inject/sitecustomize.py      on PYTHONPATH: imported by every Python process at its start
    inject/_ncclt_recording/     the hook itself
    inject/recording.json        warm-up, steps, stop-after, times-only, count-only
    python-started               written by the first Python process of the job
    stop                         written by the launching side to end a segment; rank 0 renames it to `stopped`
    ranks/HOST.PID.json          one journal per process that loaded PyTorch
    traces/rankN.json            one Kineto trace per rank; empty where only step times are taken
    nccl/HOST.PID.log            one NCCL log per process
    plugin/ncclt-plugin.*.jsonl  one report of the tuner plugin per communicator and process

Variables reach the ranks by the launcher: torchrun, srun (unless `--export` says otherwise) and MPI launchers built on
Hydra (MPICH, Intel MPI) hand their whole environment on. Open MPI does so on its own host alone; on others it sets what
`-x` names, and it refuses to start with both `-x` and the parameter `mca_base_env_list` (seen with 4.1.4).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib.resources import files
from pathlib import Path

from ncclt.core.budget import MOST_LAUNCHES
from ncclt.errors import UsageError
from ncclt.launch.mpi import forward_variables
from ncclt.profile.record.plugin import FOLDER as PLUGIN_FOLDER
from ncclt.profile.record.plugin import plugin_variables


class Method(StrEnum):
    """Way to record messages: PyTorch's profiler, NCCL's log, both with the profiler preferred, or the plugin."""

    AUTO = "auto"
    TORCH = "torch"
    NCCL_LOG = "nccl-log"
    PLUGIN = "plugin"


RAW_FOLDERS = ("ranks", "traces", "nccl", PLUGIN_FOLDER)
"""Folders into which the ranks write."""

FOLDERS = ("inject", "inject/_ncclt_recording", *RAW_FOLDERS)
"""All folders inside the recording's folder."""

NCCL_LOG_SUBSYSTEMS = "INIT,ENV,COLL,TUNING"
"""Calls with sizes, the communicators' ranks, and what was set by variables (NCCL src/debug.cc, src/enqueue.cc)."""

WINDOW_STEPS, WARMUP_STEPS = 20, 10
"""Steps that are recorded, and steps before them, where nothing else is said."""

_INJECTED = ("__init__", "recorder", "start", "when_imported")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordOptions:
    """Scope of a recording.

    Attributes:
        method: how the messages are recorded.
        steps: training steps to record, None = `WINDOW_STEPS`; with the plugin: all steps of the command, None =
            count them.
        warmup: steps before them, None = `WARMUP_STEPS`.
        stop_after: end the job after the window.
        times_only: record the times of the steps without a trace.

    Raises:
        UsageError: impossible numbers, or options that cannot be combined.
    """

    method: Method = Method.AUTO
    steps: int | None = None
    warmup: int | None = None
    stop_after: bool = False
    times_only: bool = False

    def __post_init__(self) -> None:
        """Check the options."""
        for flag, value in (("--steps", self.steps), ("--warmup", self.warmup)):
            if value is not None and not 1 <= value <= MOST_LAUNCHES:
                hint = "the first step is never typical: DDP sends other buckets in it"
                raise UsageError(f"{flag} must be 1 to {MOST_LAUNCHES:,}, not {value}", hint=hint)
        if self.stop_after and self.method in (Method.NCCL_LOG, Method.PLUGIN):
            hint = f"leave out --with {self.method}"
            raise UsageError("--stop-after needs the window of PyTorch's profiler", hint=hint)
        if self.warmup is not None and self.method is Method.PLUGIN:
            raise UsageError("--warmup does not apply to the plugin: it counts the whole run", hint="leave it out")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordPlan:
    """A recording, decided but not begun.

    Attributes:
        argv: the command, with options that forward the variables where its launcher forwards none by itself.
        set_env: variables added to its environment, sorted.
        files: files of the recording's folder, relative path -> content.
        notes: what the user should know beforehand, one sentence each.
        options: its scope.
    """

    argv: tuple[str, ...]
    set_env: tuple[tuple[str, str], ...]
    files: tuple[tuple[str, str], ...]
    notes: tuple[str, ...] = ()
    options: RecordOptions


def plan_recording(
    argv: Sequence[str],
    options: RecordOptions,
    *,
    folder: Path,
    environ: Mapping[str, str],
    open_mpi: bool = False,
    library: Path | None = None,
) -> RecordPlan:
    """Plan the start of a command so that it records itself.

    Args:
        argv: the command as the user gave it.
        options: scope of the recording.
        folder: the recording's folder, absolute.
        environ: the environment that the command inherits.
        open_mpi: the command is Open MPI's launcher.
        library: the compiled tuner plugin, None = missing.

    Raises:
        UsageError: no command, a folder name that a variable cannot carry, or no plugin although it is needed.
    """
    if not any(argv[:1]):  # also an empty word, as of a variable that is not set
        raise UsageError("no command to record", hint="put it after --: ncclt profile record --name N -- torchrun ...")
    if not can_be_named(folder):
        hint = "name another place with --dir"
        raise UsageError(f"{folder} cannot be used: its name has a '{os.pathsep}'", hint=hint)
    method = options.method
    set_env: dict[str, str] = {}
    contents: dict[str, str] = {}
    notes: list[str] = []
    counts_steps = method is Method.PLUGIN and options.steps is None
    if method in (Method.AUTO, Method.TORCH) or counts_steps:
        set_env |= _torch_variables(folder / "inject", environ)
        contents |= _injected_files(options, count_only=counts_steps)
    if method is Method.PLUGIN:
        variables, plugin_notes = plugin_variables(folder, environ, library=library)
        set_env |= variables
        notes += plugin_notes
    if method is Method.NCCL_LOG or (method is Method.AUTO and "NCCL_DEBUG" not in environ):
        # NCCL fills in host and process, and reads %% as % (src/debug.cc).
        log = f"{str(folder).replace('%', '%%')}/nccl/%h.%p.log"
        set_env |= {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": NCCL_LOG_SUBSYSTEMS, "NCCL_DEBUG_FILE": log}
    elif method is Method.AUTO:
        notes.append("NCCL_DEBUG is already set and kept: no NCCL log is recorded with the traces")
    if method is Method.NCCL_LOG:
        if "NCCL_DEBUG" in environ:
            notes.append("your NCCL_DEBUG and NCCL_DEBUG_FILE are replaced while this command runs")
        notes.append("the log covers the whole run and grows by about 150 bytes per call: a few hundred steps suffice")
    final_argv, more_env = forward_variables(tuple(argv), tuple(sorted(set_env)), environ=environ, open_mpi=open_mpi)
    return RecordPlan(
        argv=final_argv,
        set_env=tuple(sorted((set_env | more_env).items())),
        files=tuple(sorted(contents.items())),
        notes=tuple(notes),
        options=options,
    )


def can_be_named(folder: Path) -> bool:
    """Return True if PYTHONPATH can hold the name of a folder."""
    return os.pathsep not in str(folder)


def _torch_variables(inject: Path, environ: Mapping[str, str]) -> dict[str, str]:
    before = environ.get("PYTHONPATH", "")
    variables = {"PYTHONPATH": f"{inject}{os.pathsep}{before}" if before else str(inject)}
    if "KINETO_LOG_LEVEL" not in environ:
        # Some versions (seen: torch 2.13) write their stages to stderr, which belongs to the command. 6 is above the
        # last level of any version (libkineto/src/ILoggerObserver.h); errors show by what a trace lacks.
        variables["KINETO_LOG_LEVEL"] = "6"
    return variables


def _injected_files(options: RecordOptions, *, count_only: bool) -> dict[str, str]:
    source = files("ncclt.profile.record")
    settings = {
        "steps": WINDOW_STEPS if options.steps is None else options.steps,
        "warmup": WARMUP_STEPS if options.warmup is None else options.warmup,
        "stop_after": options.stop_after,
        "times_only": options.times_only,
        "count_only": count_only,
    }
    injected = {f"inject/_ncclt_recording/{name}.py": source / "injected" / f"{name}.py" for name in _INJECTED}
    injected["inject/sitecustomize.py"] = source / "entry.py"
    contents = {path: file.read_text(encoding="utf-8") for path, file in injected.items()}
    return contents | {"inject/recording.json": json.dumps(settings)}
