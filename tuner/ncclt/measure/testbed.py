"""A target ready to measure: its runners, and what can be tried and measured there."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ncclt.core.cluster import Cluster
from ncclt.core.message import Collective, Message
from ncclt.core.setting import Setting
from ncclt.core.study import Arm, Phase, Trial
from ncclt.core.trial import Outcome, Runner
from ncclt.core.workload import LEFT_OUT, Workload
from ncclt.errors import InputError, UsageError
from ncclt.measure import PersistentRunner
from ncclt.measure.runner import RealRunner
from ncclt.nccl.switching import find_forcing_problem

if TYPE_CHECKING:
    from ncclt.measure.replay import Landscape


@dataclass(frozen=True, slots=True, kw_only=True)
class Testbed:
    """A place to measure: the runner, what it can measure, and which settings it supports.

    Attributes:
        runner: measures settings; confirmation and proof run on it alone.
        by_variables: measures the arm of plain variables in the proof, where `runner` forces settings through the tuner
            plugin: a table and variables differ, in channels above all. None = `runner` does.
        by_today: measures the arm of today, with the tuning variables of the user's shell; None = the shell sets none,
            or nothing is launched.
        today: (name, value) of these variables.
        others: measure settings in parallel with `runner`, on other nodes; the search uses all of them.
        persistent: keep their ranks from trial to trial; if there are any, the search uses these instead, and they end
            before `runner` measures finalists and proof with fresh ranks.
        reason: why trials run there.
        covers: returns whether a message can be measured there.
        recorded: the recorded settings of a replay; None = whatever NCCL accepts.
        landscape: what is replayed; None = nothing is.
        why_not: returns why a setting cannot be forced there as a whole; empty = it can.
        without_plugin: nothing is launched, and only what variables can force is tried.
        by_options: only what options of a process group carry is tried: channels, with algorithm and protocol left to
            NCCL.
        beside_compute: a matrix product runs beside the collectives.
        notes: for readers of the result.
        by_model: times come from NCCL's cost model, which has no term for process-wide parameters.
        inert: why no setting can change anything there, empty where one can; then nothing is proven and only the
            default published, despite any noise.
    """

    runner: Runner
    by_variables: Runner | None = None
    by_today: Runner | None = None
    today: tuple[tuple[str, str], ...] = ()
    others: tuple[Runner, ...] = ()
    persistent: tuple[PersistentRunner, ...] = ()
    reason: str
    covers: Callable[[Message], bool]
    recorded: tuple[Setting, ...] | None = None
    landscape: Landscape | None = None
    why_not: Callable[[Setting], str] = lambda _setting: ""
    without_plugin: bool = False
    by_options: bool = False
    beside_compute: bool = False
    notes: tuple[str, ...] = ()
    by_model: bool = False
    inert: str = ""

    @property
    def searching(self) -> tuple[Runner, ...]:
        """Return the runners of the search."""
        return self.persistent or (self.runner, *self.others)

    @property
    def by_plugin(self) -> bool:
        """Return True if the tuner plugin forces settings here, or would where nothing is launched."""
        return self.by_variables is not None or not (self.is_launched or self.without_plugin)

    @property
    def way(self) -> str:
        """Return a word for each thing that sets the times measured here apart from those of plain launches."""
        words = {
            "+plugin": self.by_variables is not None,
            "+variables": self.without_plugin,
            "+options": self.by_options,
            "+persistent": self.persistent,
            "+beside": self.beside_compute,
            # Before, variables forced a minimum of channels as well.
            "+most": self.is_launched,
            # Before, simulated times were those of a model with mechanisms.
            "+model": self.by_model,
        }
        return "".join(word for word, is_true in words.items() if is_true)

    def expressible(self, setting: Setting) -> bool:
        """Return True if a setting can be forced there as a whole."""
        return not self.why_not(setting)

    def forcing(self, collectives: frozenset[Collective], through: str | None) -> Testbed:
        """Return a testbed that launches nothing, with the settings that could be forced on real nodes.

        Args:
            through: the way of forcing; None = the tuner plugin, which forces most.
        """
        plugin = through in (None, "plugin")
        why_not = partial(
            find_forcing_problem, version=self.runner.cluster.version, collectives=collectives, plugin=plugin
        )
        testbed = replace(self, why_not=why_not, without_plugin=not plugin)
        return testbed.with_options_alone() if through == "options" else testbed

    def with_options_alone(self) -> Testbed:
        """Return the testbed with the settings that options of a process group carry."""

        def why_not(setting: Setting) -> str:
            forced = setting.algorithm or setting.protocol
            return "options of a process group carry channels alone" if forced else self.why_not(setting)

        return replace(self, why_not=why_not, by_options=True)

    def require_alike(self, trials: Iterable[Trial]) -> None:
        """Refuse to search on where the trials of a study could not be compared with those that would be made here.

        Raises:
            UsageError: persistent ranks measured them and would not now, or the plugin forced their settings and would
                not now, or the other way round.
        """
        good = [t.result for t in trials if t.phase is Phase.SEARCH and t.result.outcome is Outcome.OK]
        if any(result.persistent != bool(self.persistent) for result in good):
            earlier = "launches, not persistent ranks," if self.persistent else "persistent ranks"
            option = f"with{'out' if self.persistent else ''} --persistent"
            raise _not_alike(f"measured by {earlier}", option)
        by_plugin = self.by_variables is not None
        if any(result.by_plugin != by_plugin for result in good):
            earlier, option = ("variables", "variables") if by_plugin else ("the plugin", "plugin")
            raise _not_alike(f"forced by {earlier}", f"with --through {option}")

    @property
    def by_arm(self) -> dict[Arm, Runner]:
        """Return the runners of arms that need another runner than `runner`."""
        runners = {Arm.VARIABLES: self.by_variables, Arm.TODAY: self.by_today}
        return {arm: runner for arm, runner in runners.items() if runner is not None}

    @contextmanager
    def awake(self) -> Iterator[None]:
        """Keep ranks from trial to trial within; afterwards none waits any more, and the GPUs are free."""
        try:
            yield
        finally:
            for runner in self.persistent:
                runner.close()

    def kill(self) -> None:
        """End at once what the runners are measuring; those that measure nothing real have nothing to end."""
        for runner in self._real:
            runner.kill()

    @property
    def is_launched(self) -> bool:
        """Return True if anything real is started here."""
        return bool(self._real)

    @property
    def _real(self) -> tuple[RealRunner, ...]:
        runners = (self.runner, self.by_variables, *self.others, *self.persistent)
        return tuple(runner for runner in runners if isinstance(runner, RealRunner))

    def calibrate(self, wall_s: float, times_us: Mapping[Message, float]) -> None:
        """Tell the runners what the stored default of a resumed study took: timeouts and sampling follow from it.

        Args:
            wall_s: for the whole launch, s.
            times_us: for one call of each message, µs.
        """
        for runner in self._real:
            runner.calibrate(wall_s, times_us)

    def can_measure(self, message: Message, setting: Setting) -> bool:
        """Return True if a message can be measured under the default and under a setting."""
        recorded = self.landscape is None or bool(self.landscape.time_samples(setting, message))
        return self.covers(message) and recorded

    def find_padded(self, workload: Workload) -> tuple[Message, ...]:
        """Return the padded sizes of messages that begin unaligned; none where nothing is launched.

        nccl-tests send the padded size anyway, once for both.

        Args:
            workload: placed.
        """
        messages = {calls.message for calls in workload.messages} if self.is_launched else ()
        padded = {replace(m, size_bytes=m.padded_bytes) for m in messages if m.begins_unaligned}
        return tuple(sorted(padded.difference(messages)))

    def cut(self, workload: Workload) -> tuple[Workload, tuple[str, ...]]:
        """Place a workload and leave out what cannot be measured here; return it with notes that say so.

        Raises:
            InputError: nothing of it can be measured here.
        """
        cluster = self.runner.cluster
        placed = workload.placed(nodes=cluster.nodes, gpus_per_node=cluster.gpus_per_node)
        notes = list(self.notes)
        recorded_ranks = workload.provenance.world_size
        if recorded_ranks and recorded_ranks != cluster.world_size:
            notes.append(
                f"recorded with {recorded_ranks} ranks, tuned for {cluster.world_size}: messages of the whole job keep "
                "their size"
            )
        measurable = tuple(calls for calls in placed.messages if self.covers(calls.message))
        if not measurable:
            recorded = self.landscape.choices if self.landscape else "other collectives"
            raise InputError(
                f"none of the messages of {workload.name!r} is in the landscape, which has settings to choose from for "
                f"{recorded}",
                hint=f"`ncclt profile show {shlex.quote(workload.name)}` shows its messages; `ncclt landscape show` "
                "shows the other recorded clusters",
            )
        if len(measurable) < len(placed.messages):
            cut = replace(placed, messages=measurable)
            share = _share_words(
                sum(c.bytes_per_step for c in placed.messages if c not in measurable), cut.bytes_per_step
            )
            missing = sorted({c.message.collective.value for c in placed.messages if c not in measurable})
            notes.append(
                f"{len(placed.messages) - len(measurable)} of {len(placed.messages)} messages ({', '.join(missing)}; "
                f"{share} of the bytes) are outside the landscape and left to NCCL"
            )
            detail = {**placed.provenance.detail, LEFT_OUT: notes[-1]}
            placed = replace(cut, provenance=replace(placed.provenance, detail=detail))
        if self.landscape is not None:
            notes += self.landscape.caveats(c.message for c in placed.messages)
        return placed, tuple(notes)


def _not_alike(how: str, option: str) -> UsageError:
    return UsageError(
        f"the search of this study was {how} and cannot be compared with what would be now",
        hint=f"go on {option}, or name another --study",
    )


def _share_words(part: float, rest: float) -> str:
    """Return the share that a part has beside a rest, as a percentage; one that is not all never reads as all.

    >>> _share_words(1, 1), _share_words(1, 30), _share_words(1, 1e7), _share_words(1e20, 1)
    ('50 %', '3.2 %', 'under 0.1 %', 'over 99 %')
    """
    percent = 100 * part / (part + rest)
    if percent < 0.1 and part:
        return "under 0.1 %"
    if percent >= 99.5 and rest:
        return "over 99 %"
    return f"{percent:.0f} %" if percent >= 9.95 else f"{percent:.1f} %"


def simulated_testbed(cluster: Cluster, *, seed: int, reason: str, parallel: int = 1) -> Testbed:
    """Return NCCL's cost model of a cluster as a place to measure, or several of them at once."""
    from ncclt.measure.simulated import SimulatedRunner

    return Testbed(
        runner=SimulatedRunner(cluster, seed=seed),
        others=tuple(SimulatedRunner(cluster, seed=seed) for _ in range(parallel - 1)),
        reason=reason,
        covers=lambda _message: True,
        by_model=True,
        notes=(
            "SIMULATED: times come from NCCL's own cost model and cannot reveal a poor NCCL default; "
            "nothing was measured",
            *notes_on_parallel(parallel),
        ),
    )


def notes_on_parallel(parallel: int) -> tuple[str, ...]:
    """Return the note on trials of the search that ran at once."""
    if parallel == 1:
        return ()
    return (f"the search ran {parallel} trials at once on nodes of their own; finalists and proof ran alone",)


def replayed_testbed(path: Path, *, seed: int, reason: str) -> Testbed:
    """Return a recorded landscape as a place to measure; its search space is exactly what was recorded.

    Args:
        path: as `load_landscape` takes it.
        seed: of the recorded noise.
    """
    from ncclt.measure.replay import ReplayRunner, load_landscape

    landscape = load_landscape(path)
    return Testbed(
        runner=ReplayRunner(landscape, seed=seed),
        reason=reason,
        covers=landscape.covers,
        recorded=landscape.settings(),
        landscape=landscape,
        notes=(
            f"{'SIMULATED' if landscape.simulated else landscape.cluster.recorded_label}: replayed from {path.name}, "
            "nothing was launched",
            *landscape.notes,
        ),
    )
