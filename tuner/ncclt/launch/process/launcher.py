"""Base of the launchers: each starts a program on this machine, with the environment that it inherits."""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self, Unpack

from ncclt.launch.launcher import NO_OPTIONS, JobShape, Launcher, LaunchPlan, LaunchResult, ProcessOptions
from ncclt.launch.process.session import GRACE_S, KEEP_BYTES, ProcessSession
from ncclt.launch.ranks import UNFIT_CODE, is_deciding, strip_signs
from ncclt.launch.slurm.job import job_loss

KILL_GRACE_S = 1.0
"""After `kill`, for programs that have ranks elsewhere to end: mpirun, torchrun, srun and ssh need time for that."""

FORWARDED = ("LD_LIBRARY_PATH", "PATH", "PYTHONPATH")
"""They decide which NCCL and which Python a rank loads, so they are the same on every node."""

_PORT_TRIES = 5

_PATIENCE_S = 120.0
"""Max time of retrying a launch that does not start: nodes need minutes to register with a restarted controller."""

_SHORT_PATIENCE_S = 3.0
"""The same where a mistake is as likely: nothing has started here yet, or a program is missing."""

_LONGEST_PAUSE_S = 30.0

CANNOT_START = (126, 127)
"""A shell's words for `cannot be executed` and `not found` (POSIX sh, 2.8.2)."""

_MISSING = re.compile(r"(?i)not found|no such file|permission denied|cannot execute|exec format")
"""Words of shells that cannot start a program."""

_MOST_CHARACTERS = 400
"""Of the line that says why nothing started."""

_PORT_TAKEN = re.compile(r"server socket has failed to (?:listen|bind).*(?:EADDRINUSE|[Aa]ddress already in use)")
"""torch's TCPStore (csrc/distributed/c10d/socket.cpp) on the host of rank 0, where another process has the port."""


class ProcessLauncher(Launcher, ABC):
    """Starts programs with the environment at its construction, so that plans do not change later.

    Args:
        shape: shape of every launch; None = one process.
        python: Python with PyTorch on the nodes, for launchers that start ranks by torchrun.
        uses_mpi: processes find each other by MPI; otherwise by the variables of torchrun.
        environment: inherited environment; None = the environment of this program.
        keep_env: inherited variables of NCCL and our plugin to pass on; all others are removed.
        extra: further options of the program that starts the command, verbatim.
        grace_s: time between SIGTERM and SIGKILL.
        kill_grace_s: the same after `kill`.
        keep_bytes: max bytes to keep of each output.

    Attributes:
        ranks_report: each rank reports its start (`ranks`), so a launch without a report did not start.
    """

    ranks_report: ClassVar[bool] = True

    @classmethod
    def create(cls, *, options: Mapping[str, Any] = NO_OPTIONS, **process: Unpack[ProcessOptions]) -> Self:
        """Return a launcher of jobs of one shape, whose options are arguments of the class."""
        return cls(**options, **process)

    def __init__(
        self,
        *,
        shape: JobShape | None = None,
        python: str = sys.executable,
        uses_mpi: bool = True,
        environment: Mapping[str, str] | None = None,
        keep_env: Collection[str] = (),
        extra: Sequence[str] = (),
        grace_s: float = GRACE_S,
        kill_grace_s: float = KILL_GRACE_S,
        keep_bytes: int = KEEP_BYTES,
    ) -> None:
        self.shape, self.python, self.uses_mpi = shape or JobShape(), python, uses_mpi
        self.environment: Mapping[str, str] = dict(os.environ if environment is None else environment)
        self.extra = tuple(extra)
        self._keep_env = frozenset(keep_env)
        self.grace_s = grace_s
        self._kill_grace_s = kill_grace_s
        self._keep_bytes = keep_bytes
        self._lock = threading.RLock()  # a signal handler may call kill while this very thread holds it
        self._running: list[ProcessSession] = []
        self._waiting: list[threading.Event] = []
        self._has_started = False

    @abstractmethod
    def plan(
        self, argv: Sequence[str], *, variables: Mapping[str, str], timeout_s: float, files: Sequence[Path] = ()
    ) -> LaunchPlan:
        """Decide how a command would be started, as `Launcher` says."""

    @property
    def inherited(self) -> tuple[str, ...]:
        """Return the names of the inherited variables for NCCL and our plugin; plans name those that are removed."""
        return tuple(sorted(name for name in self.environment if name.startswith("NCCL_") or is_deciding(name)))

    def removed_names(self, variables: Mapping[str, str]) -> tuple[str, ...]:
        """Return the names of inherited variables that must not reach a command, given its own variables."""
        return tuple(name for name in self.inherited if name not in variables and name not in self._keep_env)

    def kept_variables(self, variables: Mapping[str, str]) -> dict[str, str]:
        """Return the inherited variables that must reach every process of a command."""
        names = set(self.inherited) - {*variables, *self.removed_names(variables)}
        return {name: self.environment[name] for name in sorted(names)}

    def run(self, plan: LaunchPlan) -> LaunchResult:
        """Start the plan's command and wait for its end; again, after pauses, where nothing of it started."""
        killed = threading.Event()
        with self._lock:
            self._waiting.append(killed)
        try:
            result, pause_s = self._try(plan), 1.0
            is_likely_there = self._has_started and result.exit_code not in CANNOT_START
            until_s = time.monotonic() + (_PATIENCE_S if is_likely_there else _SHORT_PATIENCE_S) - result.wall_s
            while self._may_start_yet(result) and time.monotonic() < until_s:
                if killed.wait(pause_s):
                    return replace(result, killed=True)
                result, pause_s = self._try(plan), min(2 * pause_s, _LONGEST_PAUSE_S)
        finally:
            with self._lock:
                self._waiting.remove(killed)
        self._has_started = self._has_started or not result.not_started
        return result

    def _may_start_yet(self, result: LaunchResult) -> bool:
        """Return True if another try can help: not if the nodes are lost, or if the program was never there."""
        was_never_there = not self._has_started and result.exit_code in (None, *CANNOT_START)
        return bool(result.not_started) and not (result.killed or result.timed_out or result.lost or was_never_there)

    def _try(self, plan: LaunchPlan) -> LaunchResult:
        """Run the command once, with another port where the first one is taken, and read how it ended."""
        result = self._run(plan)
        for _ in range(_PORT_TRIES - 1):
            if result.exit_code == 0 or result.killed or not _PORT_TAKEN.search(result.stderr + result.stdout):
                break
            result = self._run(plan)
        stdout, stdout_has_sign = strip_signs(result.stdout)
        stderr, stderr_has_sign = strip_signs(result.stderr)
        started = stdout_has_sign or stderr_has_sign or result.dropped_bytes > 0 or not self.ranks_report
        result = replace(result, stdout=stdout, stderr=stderr)
        if result.exit_code == 0 or result.killed:
            return result
        lost, requeued = job_loss(self.environment)
        result = self.read_ending(replace(result, lost=lost, requeued=requeued))
        if result.not_started or result.exit_code == UNFIT_CODE:
            return result
        if result.exit_code in CANNOT_START or not started:
            return replace(result, not_started=_why_not_started(result))
        return result

    def read_ending(self, result: LaunchResult) -> LaunchResult:
        """Return the result of a launch that failed, with the exit code of the rank that failed first."""
        return result

    def _run(self, plan: LaunchPlan) -> LaunchResult:
        inherited = {name: value for name, value in self.environment.items() if name not in plan.unset_env}
        session = ProcessSession(
            plan,
            environment=inherited,
            grace_s=self.grace_s,
            kill_grace_s=self._kill_grace_s,
            keep_bytes=self._keep_bytes,
        )
        with self._lock:
            self._running.append(session)
        try:
            return session.run()
        finally:
            with self._lock:
                self._running.remove(session)

    def kill(self) -> None:
        """End what every `run` is waiting for, at once."""
        with self._lock:
            for killed in self._waiting:
                killed.set()
            for session in self._running:
                session.kill()


def _why_not_started(result: LaunchResult) -> str:
    """Return the line that says why nothing started: about a missing program, else the first of ours, else the last."""
    lines = [line.strip() for text in (result.stdout, result.stderr) for line in text.splitlines() if line.strip()]
    missing = [line for line in lines if result.exit_code in CANNOT_START and _MISSING.search(line)]
    ours = [line.removeprefix("ncclt: ") for line in lines if line.startswith("ncclt: ")]
    ending = "no process reported its start in time" if result.timed_out else f"exit code {result.exit_code}"
    return [*missing, *ours, *lines[-1:], ending][0][:_MOST_CHARACTERS]


def thread_variables(environment: Mapping[str, str], variables: Mapping[str, str]) -> dict[str, str]:
    """Return OMP_NUM_THREADS where it is not set.

    torchrun sets it to 1, with a warning and only where a node has several ranks; set here, it is the same under every
    launcher and for every number of ranks.
    """
    return {} if "OMP_NUM_THREADS" in environment or "OMP_NUM_THREADS" in variables else {"OMP_NUM_THREADS": "1"}
