"""A stored study searched again on its own measurements, without a GPU: would another sampler have been sooner?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ncclt.core.cluster import Cluster
from ncclt.core.policy import Policy
from ncclt.core.printed_costs import PrintedCosts
from ncclt.core.score import score_us
from ncclt.core.setting import DEFAULT, Setting
from ncclt.core.study import Phase, Study, Trial
from ncclt.core.trial import Outcome, TrialResult
from ncclt.core.workload import Workload
from ncclt.errors import UsageError
from ncclt.search.assemble import Times, assemble, collect_times, expected_us
from ncclt.search.samplers import sampler_named
from ncclt.search.space import recorded_space

FEWEST_SETTINGS = 4
"""Settings beside the default below which there is nothing to search."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedStudy:
    """What a study measured, as the landscape of other searches.

    Attributes:
        cluster, workload: of the study.
        results: setting -> its launches that measured every message, or failed; the default is among them.
        truth: median times of the settings that never failed.
        ideal_us: time per step of the best policy that the recording allows.
        printed_costs: NCCL's own tables that the study began from, where it had them.
    """

    cluster: Cluster
    workload: Workload
    results: Mapping[Setting, tuple[TrialResult, ...]]
    truth: Times
    ideal_us: float
    printed_costs: PrintedCosts | None = None

    def regret(self, policy: Policy) -> float:
        """Return by which share a policy is slower than the ideal one."""
        found = expected_us(policy, self.truth, self.workload, version=self.cluster.version)
        return found / self.ideal_us - 1

    @property
    def best_single_regret(self) -> float:
        """Return the regret of the best single setting for all messages."""
        calls = {c.message: c.calls_per_step for c in self.workload.messages}
        totals = (sum(calls[m] * us for m, us in times.items()) for times in self.truth.by_setting.values())
        return min(totals) / self.ideal_us - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """One search over a recording.

    Attributes:
        sampler, seed: which.
        regrets: of the policy after each launch, the default's first.
    """

    sampler: str
    seed: int
    regrets: tuple[float, ...]

    def launches_within(self, share: float) -> int | None:
        """Return the launches after which the regret stays within a share; None = never."""
        outside = [number for number, regret in enumerate(self.regrets, start=1) if regret > share]
        needed = max(outside, default=0) + 1
        return needed if needed <= len(self.regrets) else None


def recording_of(study: Study, trials: Sequence[Trial]) -> RecordedStudy:
    """Return the landscape that a study has measured.

    Args:
        study: whose cluster and workload count.
        trials: all of it; the proof's are left out, as they measure parts.

    Raises:
        UsageError: too few settings were measured, or the default was not.
    """
    wanted = {calls.message for calls in study.workload.messages}
    results: dict[Setting, list[TrialResult]] = {}
    whole: list[Trial] = []
    for trial in trials:
        measured = {m.message for m in trial.result.measurements}
        if trial.phase is Phase.VERIFY or (trial.result.outcome is Outcome.OK and measured != wanted):
            continue
        whole.append(trial)
        results.setdefault(trial.setting, []).append(trial.result)
    good_default = [r for r in results.get(DEFAULT, []) if r.outcome is Outcome.OK]
    if len(results) < FEWEST_SETTINGS + 1 or not good_default:
        raise UsageError(
            f"study {study.name} measured {len(results)} settings: too few to search among",
            hint="give it more --trials",
        )
    truth = collect_times(whole)
    version = study.cluster.version
    ideal = assemble(truth, study.workload, version=version)
    return RecordedStudy(
        cluster=study.cluster,
        workload=study.workload,
        results={s: tuple(found) for s, found in results.items()} | {DEFAULT: tuple(good_default)},
        truth=truth,
        ideal_us=expected_us(ideal, truth, study.workload, version=version),
        printed_costs=study.printed_costs,
    )


def replay(recording: RecordedStudy, sampler: str, *, seed: int, launches: int) -> Replay:
    """Search a recording once; a launch gives what the study measured in its launches of that setting, in turn.

    Args:
        recording: of `recording_of`.
        sampler: one of `samplers.SAMPLERS`.
        seed: of the sampler.
        launches: at most, the default's included.

    Raises:
        UsageError, MissingDependencyError: as `samplers.sampler_named`.
    """
    space = recorded_space(recording.results)
    asked = sampler_named(
        sampler, space, recording.workload, recording.cluster, seed=seed, printed_costs=recording.printed_costs
    )
    trials = [_launch(recording, DEFAULT, [])]
    regrets = [recording.regret(Policy())]
    while len(trials) < launches and (setting := asked.ask(trials)) is not None:
        trial = _launch(recording, setting, trials)
        asked.tell(trial)
        trials.append(trial)
        known = collect_times(trials)
        # What fails in any launch of the recording cannot be judged by it, however well it looked in one of them.
        usable = {s: times for s, times in known.by_setting.items() if s in recording.truth.by_setting}
        times = Times(by_setting=usable, launches=known.launches)
        regrets.append(recording.regret(assemble(times, recording.workload, version=recording.cluster.version)))
    return Replay(sampler=sampler, seed=seed, regrets=tuple(regrets))


def _launch(recording: RecordedStudy, setting: Setting, trials: Sequence[Trial]) -> Trial:
    repeat = sum(trial.setting == setting for trial in trials)
    launches = recording.results[setting]
    result = launches[repeat % len(launches)]
    return Trial(
        number=len(trials),
        phase=Phase.SEARCH,
        setting=setting,
        repeat=repeat,
        result=result,
        score_us=score_us(result, recording.workload) if result.outcome is Outcome.OK else None,
    )
