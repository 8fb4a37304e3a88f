"""Recording by ncclt's own tuner plugin: NCCL calls it for every collective, with the size that it tunes by.

Nothing of the job changes: without a table the plugin only counts, and a table that the job uses already stays in use.
"""

from __future__ import annotations

import re
import signal
import stat
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ncclt.core.workload import Workload
from ncclt.errors import TraceError, UsageError
from ncclt.nccl.tuner_plugin import LIBRARY_NAME
from ncclt.profile import read_workload
from ncclt.profile.readers.plugin_report import divide_by_steps
from ncclt.profile.record.ranks import RankReport

FOLDER = "plugin"
"""Folder of the processes' reports, in the recording's folder."""

POLICY_VARIABLES = ("NCCLT_POLICY_SHM", "NCCLT_TABLE", "NCCLT_POLICY", "NCCL_TUNER_CONFIG_FILE")
"""Variables by which the plugin finds a table (plugin/named_table.c); an empty value counts as unset."""

_REPORT = re.compile(r"ncclt-plugin\..+\.\d+\.\d+\.[0-9a-f]+\.jsonl", re.ASCII)
_NAMES = ("ncclt", LIBRARY_NAME)

_WHY_NO_REPORT = (
    "NCCL loads a tuner plugin from 2.21 on; the command may set NCCL_TUNER_PLUGIN itself, run in a container that "
    "does not see the plugin or the folder of --dir, or be ended before NCCL closes; with NCCL_DEBUG=INFO NCCL says "
    "which plugin it loaded"
)


def plugin_variables(
    folder: Path, environ: Mapping[str, str], *, library: Path | None
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the variables by which a job is counted by the plugin, and what the user should know.

    Args:
        folder: the recording's folder.
        environ: the environment that the command would inherit.
        library: the compiled plugin, None where there is none.

    Raises:
        UsageError: there is no plugin, the job uses another one, or its reports go elsewhere already.
    """
    if environ.get("NCCLT_PLUGIN_REPORT"):
        hint = "run the command without recording, then: ncclt profile import THAT_FOLDER/*"
        raise UsageError(f"the plugin's reports of this job go to {environ['NCCLT_PLUGIN_REPORT']} already", hint=hint)
    variables = {"NCCLT_PLUGIN_REPORT": str(folder / FOLDER)}
    named_tables = [name for name in POLICY_VARIABLES if environ.get(name)]
    if plugin := environ.get("NCCL_TUNER_PLUGIN", ""):
        path = Path(plugin)
        is_ours = plugin in _NAMES or path.name == LIBRARY_NAME
        if not (is_ours or (library is not None and path.exists() and path.samefile(library))):
            raise UsageError(
                f"this job has its own tuner plugin, NCCL_TUNER_PLUGIN={plugin}, and NCCL loads only one",
                hint="without it NCCL would choose other settings; unset it if that may be, or record --with nccl-log",
            )
        return variables, tuple(f"the job is recorded with the table that {name} names" for name in named_tables[:1])
    if library is None:
        raise UsageError("there is no compiled tuner plugin here", hint="build it with `ncclt admin plugin build`")
    variables["NCCL_TUNER_PLUGIN"] = str(library)
    # It was not in use before, and must not come into use by being recorded.
    variables |= dict.fromkeys(named_tables, "")
    notes = [
        "NCCL loads only one tuner: where a network plugin brings one (EFA) or there is a libnccl-tuner.so, ncclt's "
        "plugin asks it for every call"
    ]
    if named_tables:
        notes.append(f"{', '.join(named_tables)} is emptied: without NCCL_TUNER_PLUGIN your job does not use it")
    return variables, tuple(notes)


def read_plugin_reports(
    folder: Path, ranks: Sequence[RankReport], *, name: str, steps: int | None, exit_code: int
) -> Workload:
    """Read what the plugin left in a recording's folder, per training step where their number is known.

    Args:
        folder: the recording's folder.
        ranks: processes whose optimizer steps were counted; empty where `steps` was said.
        name: name of the workload.
        steps: that the user says the command made, None = not said.
        exit_code: of the command.

    Raises:
        TraceError: there is no report, or one is damaged.
    """
    reports, unfinished, others = _files(folder / FOLDER)
    if not reports:
        raise TraceError("no process wrote a report of the plugin", hint=_why_none(unfinished, exit_code))
    workload = read_workload(reports, name=name, source="plugin_report")
    counted = {rank.steps_seen for rank in ranks if rank.steps_seen}
    if steps is not None:
        workload = divide_by_steps(workload, steps, "as --steps says")
    elif counted:
        spread = "" if len(counted) == 1 else f"; other ranks made {min(counted)} and more"
        workload = divide_by_steps(workload, max(counted), f"counted by PyTorch's optimizers{spread}")
    notes = []
    if unfinished:
        notes.append(f"left out, as they were cut off while written: {unfinished} reports")
    if others:
        notes.append(f"left alone, as it is not a report: {', '.join(others)}")
    origin = workload.provenance
    return replace(workload, provenance=replace(origin, notes=(*origin.notes, *notes)))


def _files(folder: Path) -> tuple[list[Path], int, list[str]]:
    """Return reports, the number of cut-off ones, and the names of other files.

    The command may have written there too: only plain files are opened, since opening a pipe could block forever.
    """
    reports, unfinished, others = [], 0, []
    for path in sorted(folder.iterdir()):
        facts = path.lstat()
        if not stat.S_ISREG(facts.st_mode):
            others.append(path.name)
        elif _REPORT.fullmatch(path.name) and facts.st_size:
            reports.append(path)
        elif path.suffix == ".part":
            unfinished += 1
        else:
            others.append(path.name)
    return reports, unfinished, [name[:60] if name.isprintable() else repr(name)[:60] for name in others[:5]]


def _why_none(unfinished: int, exit_code: int) -> str:
    if unfinished:
        return f"processes that were ended while they wrote: {unfinished}; is the disk of --dir full?"
    if exit_code > 128:
        ended_by = exit_code - 128
        name = signal.Signals(ended_by).name if ended_by in {s.value for s in signal.Signals} else str(ended_by)
        return f"the command was ended by {name}, and a process that is killed writes none; else: {_WHY_NO_REPORT}"
    return _WHY_NO_REPORT
