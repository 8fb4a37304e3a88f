"""The runner that launches real commands: a benchmark defines what runs, a launcher where.

The outcomes are tested with a stand-in for nccl-tests that fails in every way it can, not on a GPU.
"""

from __future__ import annotations

import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Required, TypedDict, Unpack

from ncclt.core.cluster import Cluster
from ncclt.core.message import Message
from ncclt.core.policy import Policy
from ncclt.core.setting import Setting
from ncclt.core.trial import Measurement, Outcome, TrialResult
from ncclt.errors import SettingError
from ncclt.launch.launcher import Launcher, LaunchPlan, LaunchResult
from ncclt.launch.process.launcher import CANNOT_START
from ncclt.launch.process.reaper import results_folder
from ncclt.measure.benchmarks.benchmark import Benchmark, BenchmarkCommand, CommandOutput, Paced, Rounding
from ncclt.measure.limits import SamplingLimit, Timeouts
from ncclt.measure.outcome import judge, require_place
from ncclt.measure.redact import words_without_secrets
from ncclt.nccl.log.lines import P2P_CHUNK
from ncclt.nccl.log.startup import LogReader
from ncclt.nccl.p2p_chunk import find_chunk_problem, net_ratio
from ncclt.nccl.switching import ForcedState, force_policy, force_setting, table_carries
from ncclt.nccl.tuner_plugin import DELEGATE_VARIABLE

ASKING_S = 120.0
"""Max time of a program that reports its features; a login node or a file system can be slow."""

TUNER_PLUGIN = "NCCL_TUNER_PLUGIN"

SOME_FOLDER = Path("{results}")
"""Stands in plans that are only shown for the folder that each trial makes for its results."""


class RunnerParts(TypedDict, total=False):
    """Arguments of every runner of real commands, as described at `RealRunner`."""

    benchmark: Required[Benchmark]
    launcher: Required[Launcher]
    cluster: Required[Cluster]
    variables: Required[Callable[[Setting], Mapping[str, str]]]
    policy_variables: Callable[[Policy], Mapping[str, str] | None]
    timeouts: Timeouts | None
    sampling: SamplingLimit | None
    scratch: Path | None
    place: str
    plugin: Path | None
    delegate: str


def _express_nothing(_policy: Policy) -> None:
    """Return None: no variables deliver a policy."""


class RealRunner(ABC):
    """Base of the runners that start real commands.

    Args:
        cluster: cluster sized to the job.
        variables: function from a setting to the variables that force it; may raise SettingError.
        policy_variables: function from a policy to the variables that deliver it, None if they cannot; default: no
            launch can apply a whole policy.
        timeouts: timeouts of commands, shared by concurrent runners of one study.
        sampling: limits of the samples per message, shared likewise; None = sample every message in full.
        scratch: folder for result files and secrets; None = the system's temporary folder.
        place: nodes in use, as shown to users; empty if the launcher chooses them.
        plugin: NCCL's tuner plugin of ncclt as the ranks see it, which forces the settings; None = variables do.
        delegate: the value of NCCLT_DELEGATE in trials through the tuner plugin, as in jobs; empty = not set.
    """

    simulated = False

    def __init__(self, **parts: Unpack[RunnerParts]) -> None:
        self._benchmark, self._launcher, self.cluster = parts["benchmark"], parts["launcher"], parts["cluster"]
        self._variables = parts["variables"]
        self._policy_variables = parts.get("policy_variables", _express_nothing)
        self._timeouts, self._sampling = parts.get("timeouts") or Timeouts(), parts.get("sampling")
        self._scratch, self._place = parts.get("scratch"), parts.get("place", "")
        self._plugin, self._delegate = parts.get("plugin"), parts.get("delegate", "")
        self._version = self.cluster.version
        self._killed = False

    @property
    def name(self) -> str:
        """Return the launcher's word."""
        return self._launcher.name

    def calibrate(self, wall_s: float, times_us: Mapping[Message, float]) -> None:
        """Use the times of the stored default of a resumed study.

        Args:
            wall_s: for the whole launch, seconds.
            times_us: for one call of each message, µs.
        """
        self._timeouts.calibrate(wall_s)
        if self._sampling is not None:
            self._sampling.learn(times_us)

    def find_rounded(self, messages: Iterable[Message]) -> dict[Message, int]:
        """Return the messages whose size the benchmark cannot send, with the size that it sends, bytes."""
        if not isinstance(self._benchmark, Rounding):
            return {}
        sent = {message: self._benchmark.sent_bytes(message) for message in messages}
        return {message: size for message, size in sent.items() if size != message.size_bytes}

    def kill(self) -> None:
        """End at once all that it has started: `measure` raises KeyboardInterrupt, now and from now on."""
        self._killed = True
        self._launcher.kill()

    def applies(self, policy: Policy) -> bool:
        """Return True if one launch can apply the whole policy, by a plugin's table or by variables."""
        if self._plugin is not None:
            return table_carries(policy, self._version)
        return self._policy_variables(policy) is not None

    def measure(self, setting: Setting, messages: Sequence[Message], *, repeat: int) -> TrialResult:
        """Measure all messages under `setting`, as `Runner` says.

        Raises:
            UsageError: the benchmark cannot measure one of the messages, or this machine cannot be reached.
            StudyStoppedError: nodes were lost, or are unfit to measure anything on; or nothing started.
            KeyboardInterrupt: `kill` was called.
        """
        return self._measure(setting, messages, repeat)

    def measure_policy(self, policy: Policy, messages: Sequence[Message], *, repeat: int) -> TrialResult:
        """Measure all messages under what delivers a whole policy, as `PolicyRunner` says; raises as `measure` does."""
        return self._measure(policy, messages, repeat)

    @abstractmethod
    def _measure(self, forced: Setting | Policy, messages: Sequence[Message], repeat: int) -> TrialResult: ...

    def _find_state(self, forced: Setting | Policy, messages: Sequence[Message]) -> ForcedState:
        """Return the state that forces a setting or delivers a policy; SettingError where there is none.

        NCCL takes LL128 in NCCL_PROTO as an order, also where its own rule forbids it and stores of 128 bytes may be
        torn (graph/tuning.cc); only the tuner plugin can ask for it without overruling NCCL.
        """
        if isinstance(forced, Setting):
            return force_setting(
                forced,
                version=self._version,
                collectives=[m.collective for m in messages],
                plugin=self._plugin is not None,
                variables=self._variables,
            )
        if self._plugin is not None:
            return force_policy(forced, self._variables)
        variables = self._policy_variables(forced)
        assert variables is not None, "variables must express a policy to launch it"
        return ForcedState(variables=tuple(sorted(variables.items())))

    @property
    def _loading(self) -> dict[str, str]:
        """Return the variables that make NCCL load the tuner plugin, if there is one."""
        if self._plugin is None:
            return {}
        return {TUNER_PLUGIN: str(self._plugin)} | ({DELEGATE_VARIABLE: self._delegate} if self._delegate else {})

    def _plan(self, command: BenchmarkCommand, variables: Mapping[str, str], limit_s: float) -> LaunchPlan:
        variables = {**dict(command.variables), **variables}
        return self._launcher.plan(command.argv, variables=variables, timeout_s=limit_s, files=command.files)

    def _learn(self, messages: Sequence[Message], wall_s: float, measurements: Iterable[Measurement]) -> None:
        """Set timeouts and sampling of later launches from a good launch of the default."""
        self._timeouts.calibrate(wall_s, messages)
        if self._sampling is not None:
            self._sampling.learn({m.message: m.time_us for m in measurements})

    def _paced(self, messages: Sequence[Message]) -> Benchmark:
        """Return the benchmark with the times at which each message has been sampled enough, where it can use them."""
        if self._sampling is None or not isinstance(self._benchmark, Paced):
            return self._benchmark
        limits = zip(messages, self._sampling.enough_us(messages), strict=True)
        return self._benchmark.paced({message: limit_us for message, limit_us in limits if limit_us is not None})


class LaunchedRunner(RealRunner):
    """Measures settings by launching a benchmark: the `Runner` of every launcher.

    A trial launches the commands of the benchmark one after another and ends at the first that fails.

    Args:
        scratch_is_shared: whether what rank 0 writes in `scratch` can be read here. False = results have to come over
            standard output, for example where the ranks run in other containers or behind a login node.
        parts: as `RealRunner` takes them.
    """

    def __init__(self, *, scratch_is_shared: bool = True, **parts: Unpack[RunnerParts]) -> None:
        super().__init__(**parts)
        self._scratch_is_shared = scratch_is_shared

    def plans(self, setting: Setting, messages: Sequence[Message]) -> tuple[LaunchPlan, ...]:
        """Return the launches of one trial as they would be made, and make none.

        Raises:
            UsageError: the benchmark cannot measure one of the messages.
            SettingError: the setting cannot be forced here.
        """
        variables = self._environment(self._find_state(setting, messages), SOME_FOLDER)
        commands = self._paced(messages).commands(messages, folder=SOME_FOLDER if self._scratch_is_shared else None)
        return tuple(self._plan(command, variables, self._timeouts.limit_s(command.messages)) for command in commands)

    def _measure(self, forced: Setting | Policy, messages: Sequence[Message], repeat: int) -> TrialResult:
        try:
            state = self._find_state(forced, messages)
        except SettingError as error:
            return TrialResult(outcome=Outcome.INVALID, detail=error.message, by_plugin=self._plugin is not None)
        if not self._scratch_is_shared:
            return self._trial(forced, state, messages, None)
        # Readable by its owner alone and short-lived: nccl-tests writes the environment there.
        with results_folder(f"ncclt-{forced.digest()}-{repeat}-", parent=self._scratch) as folder:
            return self._trial(forced, state, messages, folder)

    def _environment(self, state: ForcedState, folder: Path | None) -> Mapping[str, str]:  # noqa: ARG002
        """Return the variables of a launch."""
        return dict(state.variables)

    def _attest(
        self,
        result: TrialResult,
        state: ForcedState,  # noqa: ARG002
        messages: Sequence[Message],  # noqa: ARG002
        folder: Path | None,  # noqa: ARG002
    ) -> TrialResult:
        """Judge the good result of a command by what is known beside its output."""
        return result

    def _trial(
        self, forced: Setting | Policy, state: ForcedState, messages: Sequence[Message], folder: Path | None
    ) -> TrialResult:
        """Launch the commands one after another, to the first that fails."""
        variables = self._environment(state, folder.absolute() if folder else None)
        measured: dict[Message, Measurement] = {}
        commands: list[str] = []
        wall_s = 0.0
        result = TrialResult(outcome=Outcome.OK)
        benchmark = self._paced(messages)
        for command in benchmark.commands(messages, folder=folder):
            if self._killed:
                raise KeyboardInterrupt
            limit_s = self._timeouts.limit_s(command.messages)
            plan = self._plan(command, variables, limit_s)
            commands.append(command_line(plan))
            launch = self._launcher.run(plan)
            if launch.killed:
                raise KeyboardInterrupt
            wall_s += launch.wall_s
            result = judge(benchmark, command, launch, limit_s=limit_s)
            if result.outcome is Outcome.OK:
                result = self._attest(result, state, command.messages, folder)
            result = _with_chunk(result, dict(forced.parameters), launch, ratio=net_ratio(self.cluster))
            measured |= {m.message: m for m in result.measurements}
            if result.outcome is not Outcome.OK:
                break
            if forced.is_default:
                self._timeouts.learn(command.messages, launch.wall_s)
        if forced.is_default and result.outcome is Outcome.OK:
            self._learn(messages, wall_s, measured.values())
        return TrialResult(
            outcome=result.outcome,
            measurements=tuple(measured[m] for m in messages if m in measured),
            detail=result.detail,
            wall_s=wall_s,
            place=self._place,
            commands=tuple(commands),
            by_plugin=self._plugin is not None,
        )


def _with_chunk(result: TrialResult, parameters: Mapping[str, int], launch: LaunchResult, *, ratio: int) -> TrialResult:
    """Return the result, or `substituted` where NCCL's log is in the output and shows another P2P chunk than asked for.

    Trials do not request a log; a file of the site, such as /etc/nccl.conf, may.
    """
    output = f"{launch.stdout}\n{launch.stderr}"
    if result.outcome is not Outcome.OK or not P2P_CHUNK.search(output):
        return result
    reader = LogReader()
    reader.read(output.splitlines(), "the output")
    problem = find_chunk_problem(parameters, reader.facts().p2p_chunks, ratio=ratio)
    return replace(result, outcome=Outcome.SUBSTITUTED, detail=problem, measurements=()) if problem else result


def command_line(plan: LaunchPlan) -> str:
    """Return a launch as a line for a shell, without secrets: what it unsets and sets, then the program."""
    unset = [word for name in plan.unset_env for word in ("-u", name)]
    changed = [*unset, *(f"{name}={value}" for name, value in plan.set_env)]
    return shlex.join(words_without_secrets(["env", *changed, *plan.argv] if changed else plan.argv))


def ask_through(launcher: Launcher, *, timeout_s: float = ASKING_S) -> Callable[[Sequence[str]], CommandOutput]:
    """Return a function that runs a command where trials run and returns its output; benchmarks ask programs by it."""

    def run(argv: Sequence[str]) -> CommandOutput:
        launch = launcher.run(launcher.plan(argv, variables={}, timeout_s=timeout_s))
        if launch.killed:
            raise KeyboardInterrupt
        if launch.exit_code not in (0, *CANNOT_START):  # a missing program is for the benchmark to explain
            require_place(launch)
        output = f"{launch.not_started}\n{launch.stderr}" if launch.not_started else launch.stderr
        return CommandOutput(exit_code=launch.exit_code, stdout=launch.stdout, stderr=output)

    return run
