"""The runner of persistent ranks: a setting takes effect in them without a relaunch, as cheaply as NCCL allows.

They differ from a fresh launch: communicators, buffers and page tables are warm from earlier trials, and NCCL's memory
is more fragmented. Every setting of a study is measured like this, the default too; finalists and the proof are
launched (`LaunchedRunner`), because that is how a training starts.

Not tested on a GPU; tested with processes of gloo, which ignore NCCL's variables.
"""

from __future__ import annotations

import itertools
import secrets
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Unpack

from ncclt.core.message import Message
from ncclt.core.nccl_version import NcclVersion
from ncclt.core.policy import Policy
from ncclt.core.setting import Setting
from ncclt.core.trial import Outcome, TrialResult
from ncclt.errors import SettingError, UsageError
from ncclt.launch.launcher import LaunchPlan, LaunchResult
from ncclt.launch.process.reaper import results_folder
from ncclt.measure.benchmarks.benchmark import BenchmarkCommand
from ncclt.measure.benchmarks.torch_collectives import TorchCollectives
from ncclt.measure.outcome import judge
from ncclt.measure.persistent.attested import Attested
from ncclt.measure.persistent.session import Controller, Session, nccl_version, session_command
from ncclt.measure.runner import RealRunner, RunnerParts
from ncclt.nccl.switching import (
    ForcedState,
    SwitchCost,
    Transition,
    initial_state,
    plan_transition,
    start_variables,
)
from ncclt.nccl.tuner_plugin.shared_table import LAYOUT, lay_out_table
from ncclt.nccl.tuner_table import communicator_shape, plugin_row

LONGEST_S = 7 * 24 * 3600.0
"""The timeout of a launch of persistent ranks."""

RENEWED_S = LONGEST_S / 2
"""Ranks older than this are restarted before a trial, so that none runs into the timeout."""


class PersistentRunner(RealRunner):
    """Measures settings in ranks that were started once: the `Runner` of a search with many trials.

    The `wall_s` of a result is how long its trial held the GPUs: the time that the ranks waited for it (for the search
    to decide, for the store), and their start and end where these belong to it.
    Every result is `persistent`, also where ranks had to be started: it is not a launch of the setting as a training
    makes it, unless the argument `persistent` is false.
    A trial whose ranks crash, hang or send wrong data ends them; the next one starts new ones. Ranks that are found
    dead before a trial has begun are replaced, and the trial is not blamed. Whenever `measure` raises, nothing is left.

    Args:
        host: name or address by which rank 0 reaches this machine; empty = its own name, or loopback where ranks are
            on this machine.
        persistent: False = the ranks end with each trial, so every trial is a launch of its own, and only what the
            plugin alone can say makes this the runner for it.
        parts: as `RealRunner` takes them. `benchmark` is `torch_collectives`, which alone has persistent ranks;
            `launcher` serves this runner alone: all that it runs is ended with the ranks; the file with the token is
            made in `scratch`, which mpirun over several nodes needs to be a folder that they share.

    Raises:
        UsageError: ranks of this benchmark or launcher cannot be persistent.
    """

    def __init__(self, *, host: str = "", persistent: bool = True, **parts: Unpack[RunnerParts]) -> None:
        super().__init__(**parts)
        benchmark, launcher = self._benchmark, self._launcher
        if not isinstance(benchmark, TorchCollectives):
            raise UsageError(
                f"the ranks of {benchmark.name} end with every launch: they cannot be kept running",
                hint="use --benchmark torch_collectives, or leave --persistent out",
            )
        if not launcher.reaches_back:
            raise UsageError(
                f"ranks cannot be kept running with --launcher {launcher.name}: they may have no way to this machine",
                hint="leave --persistent out, or run ncclt in an allocation of Slurm or next to an ssh",
            )
        self._torch = benchmark
        self._host, self._persistent = host, persistent
        self._session: Session | None = None
        self._now = ForcedState()
        self._generations = itertools.count(1)
        self._start_s = 0.0
        self._idle_since_s = 0.0
        self._attested = Attested()
        self.switches: Counter[SwitchCost] = Counter()
        """Trials by the switching cost at which they came into force; PROCESS where ranks had to be started."""

    def close(self) -> None:
        """End the ranks, if there are any; a later `measure` starts new ones."""
        session, self._session = self._session, None
        if session is not None:
            session.end()

    def plans(self, setting: Setting, messages: Sequence[Message]) -> tuple[LaunchPlan, ...]:
        """Return the launch of ranks that would start with this setting, without its token and port; start nothing.

        Raises:
            UsageError: the benchmark cannot measure one of the messages.
            SettingError: the setting cannot be forced here.
        """
        self._benchmark.commands(messages, folder=None)
        command = session_command(self._torch, controller="HOST:PORT", token=None)
        return (self._start_plan(command, self._find_state(setting, messages)),)

    def _measure(self, forced: Setting | Policy, messages: Sequence[Message], repeat: int) -> TrialResult:  # noqa: ARG002
        if self._killed:
            raise KeyboardInterrupt
        began_s, before = time.monotonic(), self._session
        idle_s = 0.0
        if before is not None:
            until_s = began_s if before.ended_s is None else min(before.ended_s, began_s)
            idle_s = max(until_s - self._idle_since_s, 0.0)
        try:
            wanted = self._find_state(forced, messages)
        except SettingError as error:
            return self._labelled(TrialResult(outcome=Outcome.INVALID, detail=error.message), wall_s=0.0)
        commands = self._paced(messages).commands(messages, folder=None)
        if not commands:
            return self._labelled(TrialResult(outcome=Outcome.OK), wall_s=0.0)
        (command,) = commands
        try:
            result = self._trial(wanted, command)
            stayed = before is not None and before is self._session
            if not self._persistent:
                self.close()
        except BaseException:
            session, self._session = self._session, None
            if session is not None:
                session.kill()
            raise
        self._idle_since_s = time.monotonic()
        wall_s = self._idle_since_s - began_s
        if forced.is_default and result.outcome is Outcome.OK:
            # As if it had been launched: later launches of the same messages use the timeouts learnt here.
            whole_s = wall_s + (self._start_s if stayed else 0.0)
            self._timeouts.learn(command.messages, whole_s)
            self._learn(messages, whole_s, result.measurements)
        # The GPUs are held between trials too, and that time is charged to this trial, whatever its outcome.
        return self._labelled(result, wall_s=idle_s + wall_s)

    def _labelled(self, result: TrialResult, *, wall_s: float) -> TrialResult:
        """Return a result that says how it was measured."""
        by_plugin = self._plugin is not None
        return replace(result, wall_s=wall_s, place=self._place, persistent=self._persistent, by_plugin=by_plugin)

    def _start_plan(self, command: BenchmarkCommand, wanted: ForcedState) -> LaunchPlan:
        return self._plan(command, {**self._loading, **start_variables(wanted, self._version)}, LONGEST_S)

    def _trial(self, wanted: ForcedState, command: BenchmarkCommand) -> TrialResult:
        limit_s = self._timeouts.limit_s(command.messages)
        failed: LaunchResult | None = None
        for _ in range(2):
            before = self._session
            failed = self._prepare(wanted, limit_s)
            if failed is not None:
                break
            assert self._session is not None, "prepared ranks exist"
            step = plan_transition(self._now, wanted, self._version)
            order = self._order(step, wanted, command)
            if self._session.begin(order):
                self.switches[step.cost if self._session is before else SwitchCost.PROCESS] += 1
                return self._finish(wanted, command, limit_s, attest=order["attest"])
            # They were lost before this trial began, which says nothing about its setting.
            failed = self._lost(self._session.kill)
        assert failed is not None, "a trial that did not begin has ended"
        return judge(self._benchmark, command, failed, limit_s=limit_s)

    def _prepare(self, wanted: ForcedState, limit_s: float) -> LaunchResult | None:
        """Ensure that ranks run in which `wanted` can take effect; return how they failed to start, else None."""
        session = self._session
        if session is not None:
            aged = time.monotonic() - session.began_s > RENEWED_S
            if not session.is_alive:
                self._lost(session.kill)
            elif aged or plan_transition(self._now, wanted, self._version).cost is SwitchCost.PROCESS:
                self.close()
        while self._session is None:
            if (failed := self._start(wanted, limit_s)) is not None:
                return failed
            # Ranks that turn out to have an older NCCL were started without what it reads only once.
            if plan_transition(self._now, wanted, self._version).cost is SwitchCost.PROCESS:
                self.close()
        return None

    def _start(self, wanted: ForcedState, limit_s: float) -> LaunchResult | None:
        token = secrets.token_hex(32)
        # If this process is killed, its reaper removes the folder.
        with results_folder("ncclt-token-", parent=self._scratch) as folder:
            file = folder / "token"
            file.touch(mode=0o600)
            file.write_text(token, encoding="ascii")
            controller = Controller(is_local=self._launcher.shares_files, host=self._host, token=token.encode())
            command = session_command(self._torch, controller=controller.address, token=file)
            try:
                plan = self._start_plan(command, wanted)
            except BaseException:
                controller.close()
                raise
            session = self._session = Session(
                launcher=self._launcher, plan=plan, controller=controller, stopped=lambda: self._killed
            )
            began_s = time.monotonic()
            ready = session.wait_ready({"table": LAYOUT if self._plugin else None}, limit_s)
        if not ready:
            late = time.monotonic() - began_s >= limit_s
            return self._lost(session.kill if late else session.wait_end, timed_out=late)
        self._start_s = time.monotonic() - began_s
        self._now, self._generations = initial_state(wanted, self._version), itertools.count(1)
        if version := nccl_version(session.environment):
            # An older NCCL than configured rereads less; for a newer one the start variables were chosen as before.
            self._version = min(self._version, NcclVersion.parse(version))
        return None

    def _order(self, step: Transition, wanted: ForcedState, command: BenchmarkCommand) -> dict[str, Any]:
        assert step.cost is not SwitchCost.PROCESS, "variables that NCCL reads once were set when the ranks started"
        table = None
        if step.rules is not None:
            nodes, ranks = self.cluster.nodes, self.cluster.world_size
            rows = [
                plugin_row(
                    rule,
                    nodes=0 if rule.spans_nodes is None else communicator_shape(rule, nodes=nodes, ranks=ranks)[0],
                    ranks=rule.group_size,
                )
                for rule in step.rules
                if rule.algorithm and rule.protocol
            ]
            table = lay_out_table(rows, next(self._generations))
        return {
            "level": step.cost.name.lower(),
            "variables": {**dict(step.set_variables), **dict.fromkeys(step.unset_variables)},
            "table": table,
            "attest": self._torch.backend == "nccl" and self._attested.lacks(wanted, command.messages),
            "arguments": command.argv[2:],  # without the interpreter and the file
        }

    def _finish(self, wanted: ForcedState, command: BenchmarkCommand, limit_s: float, *, attest: bool) -> TrialResult:
        assert self._session is not None, "a trial that has begun has ranks"
        session = self._session
        deadline_s = time.monotonic() + limit_s
        answer = session.answer(deadline_s)
        if answer is None:
            late = time.monotonic() >= deadline_s
            failed = self._lost(session.kill if late else session.wait_end, timed_out=late)
            return judge(self._benchmark, command, failed, limit_s=limit_s)
        self._now = wanted
        launch = LaunchResult(
            exit_code=1 if answer["said"] else 0, stdout="\n".join(answer["lines"]), stderr=answer["said"]
        )
        result = judge(self._benchmark, command, launch, limit_s=limit_s)
        if result.outcome is Outcome.WRONG_RESULT:
            self._lost(session.kill)  # more may be wrong there
        if result.outcome is not Outcome.OK or not attest:
            return result
        return self._attested.judge(result, answer["decisions"] or (), wanted, command.messages)

    def _lost(self, end: Callable[[], LaunchResult], *, timed_out: bool = False) -> LaunchResult:
        """Give up the ranks and return how their launch ended."""
        self._session = None
        ended = end()
        if self._killed or ended.killed:  # not by the session: everything is to end
            raise KeyboardInterrupt
        return replace(ended, timed_out=timed_out)
