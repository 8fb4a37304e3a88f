"""One trial log over those of several studies: a launch that measures the messages of all is a trial of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from ncclt.core.message import Message
from ncclt.core.policy import Policy
from ncclt.core.score import score_us
from ncclt.core.setting import Setting
from ncclt.core.study import Claim, Phase, Trial
from ncclt.core.trial import Outcome, Runner
from ncclt.core.workload import MessageCalls, Provenance, Workload
from ncclt.measure.trial import TrialLog, launch


def union_of(workloads: Sequence[Workload], times_us: Mapping[Message, float] | None = None) -> Workload:
    """Return the messages of several workloads as one, in which each of them has the same weight.

    Args:
        workloads: placed on the same cluster; one is returned as it is.
        times_us: of one call of each message under the default, by which the weights are made equal, so that the time
            per step of the union is the sum of theirs; None = not known yet, bytes stand in.
    """
    if len(workloads) == 1:
        return workloads[0]
    steps = [
        workload.bytes_per_step
        if times_us is None
        else sum(calls.calls_per_step * times_us[calls.message] for calls in workload.messages)
        for workload in workloads
    ]
    calls_per_step: dict[Message, float] = {}
    for workload, step in zip(workloads, steps, strict=True):
        for calls in workload.messages:
            before = calls_per_step.get(calls.message, 0.0)
            calls_per_step[calls.message] = before + calls.calls_per_step * fmean(steps) / step
    return Workload(
        name="+".join(workload.name for workload in workloads),
        provenance=Provenance(source="union"),
        messages=tuple(MessageCalls(message=m, calls_per_step=calls) for m, calls in calls_per_step.items()),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The part of a study in launches that serve several.

    Attributes:
        trial_log: of the study.
        workload: placed; its messages are what the study keeps of a launch.
        policy: what a launch of a whole policy is for this study; None = that policy itself.
        probes: what else it keeps of a launch that measures it.
    """

    trial_log: TrialLog
    workload: Workload
    policy: Policy | None = None
    probes: tuple[Message, ...] = ()

    def of(self, trial: Trial, claim: Claim) -> Trial:
        """Return what the study keeps of a launch, under its own number."""
        messages = {*self.probes, *(calls.message for calls in self.workload.messages)}
        measured = tuple(m for m in trial.result.measurements if m.message in messages)
        result = replace(trial.result, measurements=measured)
        return replace(
            trial, number=claim.number, repeat=claim.repeat, result=result,
            policy=trial.policy and (self.policy or trial.policy),
            score_us=score_us(result, self.workload) if result.outcome is Outcome.OK else None,
        )  # fmt: skip


class SharedTrialLog:
    """A `TrialLog` of launches that are trials of several studies at once: search and confirmation.

    The n-th launch of one study is the n-th of each; their numbers differ once their proofs took different launches,
    and here those of the first count. One process at a time uses it.

    Args:
        shares: of the studies, at least one.
    """

    def __init__(self, shares: Sequence[Share]) -> None:
        self._shares = tuple(shares)
        self._claims: dict[int, list[Claim]] = {}
        self._joined: list[Trial] = []
        self.workload = union_of([share.workload for share in self._shares])
        """What a launch measures, and how its time per step is counted."""

    def weigh(self, times_us: Mapping[Message, float]) -> None:
        """Give every study the same weight, by the default's times of one call of each message, µs."""
        self.workload = union_of([share.workload for share in self._shares], times_us)
        self._joined.clear()

    def trials(self) -> Sequence[Trial]:
        """Return the launches that all studies have, each with the messages of all."""
        mine = [_launches(share.trial_log) for share in self._shares]
        for trials in list(zip(*mine, strict=False))[len(self._joined) :]:
            self._joined.append(self._whole(trials))
        return self._joined

    def _whole(self, trials: Sequence[Trial]) -> Trial:
        measured = {m.message: m for trial in trials for m in trial.result.measurements}
        result = replace(trials[0].result, measurements=tuple(measured.values()))
        score = score_us(result, self.workload) if result.outcome is Outcome.OK else None
        return replace(trials[0], result=result, score_us=score)

    def mend(self, runner: Runner) -> None:
        """Launch again for each study what it lacks of the others' launches: a run was killed while it stored one."""
        longest = max((_launches(share.trial_log) for share in self._shares), key=len)
        for share in self._shares:
            for trial in longest[len(_launches(share.trial_log)) :]:
                launch(
                    runner, share.workload, share.trial_log, trial.setting, phase=trial.phase, policy=trial.policy
                )  # fmt: skip

    def refresh(self) -> Sequence[Claim]:
        """Return what is being launched now."""
        running = [share.trial_log.refresh() for share in self._shares]
        return running[0]

    def claim(self, setting: Setting, *, phase: Phase, most: int | None = None) -> Claim | None:
        """Reserve a number in each study; None = the budget is used."""
        first, *others = self._shares
        claim = first.trial_log.claim(setting, phase=phase, most=most)
        if claim is not None:
            self._claims[claim.number] = [claim, *(_claimed(share.trial_log, setting, phase) for share in others)]
        return claim

    def add(self, trial: Trial) -> Trial:
        """Keep the trial of a claim in every study, with the same time in each."""
        kept: list[Trial] = []
        for share, claim in zip(self._shares, self._claims.pop(trial.number), strict=True):
            mine = replace(share.of(trial, claim), started=kept[0].started if kept else trial.started)
            kept.append(share.trial_log.add(mine))
        return self._whole(kept)


def _launches(trial_log: TrialLog) -> list[Trial]:
    """Return the trials of search and confirmation by number."""
    return sorted((t for t in trial_log.trials() if t.phase is not Phase.VERIFY), key=lambda trial: trial.number)


def _claimed(trial_log: TrialLog, setting: Setting, phase: Phase) -> Claim:
    while (claim := trial_log.claim(setting, phase=phase)) is None:
        trial_log.refresh()
    return claim
