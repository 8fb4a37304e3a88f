"""Why a step of Slurm failed, read from what srun and slurmstepd printed.

srun's own exit code is the highest of all tasks, and the tasks that it ended itself count too: a rank that exits with 7
beside one that is then terminated gives 143. The first message about a task names the real failure.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass

_MAX_LINE = 300
"""Characters of a line that is quoted."""

_NOT_EXECUTABLE, _NOT_FOUND = 126, 127
"""As a shell exits (POSIX sh, 2.8.2)."""

_LAUNCH_FAILED = re.compile(r"(?m)^srun: error: (?:Task launch for .* failed|Application launch failed).*")
"""Of a node that cannot start its tasks; those of other nodes may have begun and wait for them."""

_NO_PROGRAM = re.compile(r"(?m)^slurmstepd.*? error: .*?execve\(\): (?P<program>.*): (?P<reason>[^:\n]+)$")
_SHELL_NO_PROGRAM = re.compile(r"(?m)^sh: (?:(?:line )?\d+: )?(?:exec: )?(?P<program>.+): (?P<reason>[^:\n]+)$")
_TASK = re.compile(r"(?m)^srun: error: (?P<node>\S+): tasks? (?P<tasks>[\d,-]+): (?P<ending>.+?)\s*$")
_CANCELLED = re.compile(r"(?m)^slurmstepd.* error: \*\*\* (?:STEP|JOB) .* CANCELLED AT .*")
_EXIT_CODE = re.compile(r"Exited with exit code (\d+)")

# Only lines of Slurm itself: what the program prints may hold the same words. Lines that name the cause come before
# those that only report that something ended. The lines of srun and slurmstepd come in any order.
_CAUSES: tuple[tuple[re.Pattern[str], str, bool], ...] = tuple(
    (re.compile(rf"(?mi)^(?:srun|slurmstepd|salloc)\b.*(?:{words}).*"), meaning, lost)
    for words, meaning, lost in (
        (r"oom[-_ ]kill|out[-_ ]of[-_ ]memory", "a node ran out of memory", False),
        (r"node failure on ", "a node failed", True),
        (r"node failure|node_fail", "a node failed", True),
        (r"due to preemption", "Slurm took the nodes for another job", True),
        # A step may have a time limit of its own; whether the job's is over is for `job_loss` to ask.
        (r"due to time limit", "the time of the Slurm job is over", False),
        (r"due to job requeue|job \S+ has expired|invalid job", "the Slurm allocation is gone", True),
        (r"unable to contact slurm|communication connection failure|socket timed out", "Slurm does not answer", False),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFailure:
    """How a step of Slurm failed.

    Attributes:
        reason: for the user; empty where Slurm printed none.
        exit_code: of the task that failed first, negative = ended by that signal; None = not known.
        lost: whether the allocation, or a node of it, was lost.
        not_started: srun's own words where the tasks of a node could not be started.
    """

    reason: str = ""
    exit_code: int | None = None
    lost: bool = False
    not_started: str = ""


def step_failure(text: str) -> StepFailure:
    """Read the standard error of an srun that failed."""
    if missing := _NO_PROGRAM.search(text):
        code = _NOT_FOUND if "No such file" in missing["reason"] else _NOT_EXECUTABLE
        return StepFailure(reason=_complaint(missing), exit_code=code)
    if failed := _LAUNCH_FAILED.search(text):
        return StepFailure(not_started=_short(failed[0]))
    task = _TASK.search(text)
    exit_code, ending = _ending(task["ending"]) if task else (None, "")
    for pattern, meaning, lost in _CAUSES:
        if said := pattern.search(text):
            reason = f"{meaning} ({_short(said[0])})"
            return StepFailure(reason=reason, exit_code=exit_code, lost=lost)
    cancelled = _CANCELLED.search(text)
    if cancelled and (task is None or cancelled.start() < task.start()):
        # srun reports a task first if that task is why the others were cancelled.
        return StepFailure(reason=f"the step was cancelled ({_short(cancelled[0])})", exit_code=exit_code)
    if task is None:
        return StepFailure()
    if exit_code in (_NOT_FOUND, _NOT_EXECUTABLE) and (missing := _SHELL_NO_PROGRAM.search(text)):
        return StepFailure(reason=_complaint(missing), exit_code=exit_code)
    return StepFailure(reason=f"task {task['tasks']} on {task['node']}: {ending}", exit_code=exit_code)


def _complaint(missing: re.Match[str]) -> str:
    return f"{missing['program']}: {missing['reason']} on the compute node"


def _ending(words: str) -> tuple[int | None, str]:
    """Return exit code and text of `Exited with exit code 7` or `Segmentation fault (core dumped)`.

    The shell of a task turns an end by a signal into 128 + its number.
    """
    names = {int(number): signal.strsignal(number) for number in signal.valid_signals()}
    if exited := _EXIT_CODE.search(words):
        code = int(exited[1])
        name = names.get(code - 128)
        return (128 - code, name) if name else (code, words)
    bare = words.removesuffix("(core dumped)").strip()
    return next((-number for number, name in names.items() if name == bare), None), words


def _short(line: str) -> str:
    printable = "".join(c if c.isprintable() else "?" for c in line.strip())
    return printable if len(printable) <= _MAX_LINE else printable[: _MAX_LINE - 1] + "…"
