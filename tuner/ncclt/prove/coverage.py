"""The floor under a `keep-default`: what a search must have tried before the NCCL default may be called the best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ncclt.core.recommendation import Coverage, Decision, Verdict
from ncclt.core.setting import Setting
from ncclt.core.study import Trial
from ncclt.core.trial import Outcome


def measure_coverage(
    anchors: Sequence[Setting], trials: Sequence[Trial], *, converged: bool, remaining_gain: float | None
) -> Coverage:
    """Return the settings that a search tried, by pairs of algorithm and protocol.

    Args:
        anchors: one setting per pair, of `SearchSpace.anchors`.
        trials: of the study, all of them.
        converged, remaining_gain: as for `Coverage`.
    """
    tried = [t for t in trials if t.tries_setting and not t.setting.is_default and _was_launched(t)]
    measured = {t.setting for t in tried if t.score_us is not None}
    pairs = list(dict.fromkeys(_pair(setting) for setting in anchors))
    done, launched = {_pair(setting) for setting in measured}, {_pair(t.setting) for t in tried}
    return Coverage(
        settings=len(measured),
        measured=tuple(pair for pair in pairs if pair in done),
        failed=tuple(pair for pair in pairs if pair in launched - done),
        untried=tuple(pair for pair in pairs if pair not in launched),
        channels=tuple(sorted({setting.channels for setting in measured if setting.channels is not None})),
        converged=converged,
        remaining_gain=remaining_gain,
    )


def require_coverage(verdict: Verdict, coverage: Coverage | None) -> Verdict:
    """Return a verdict, undecided instead of keep-default where too little was tried; None = that is not known."""
    if coverage is None or coverage.is_enough or verdict.decision is not Decision.KEEP_DEFAULT:
        return verdict
    reason = f"{verdict.reason}; too few settings tried to rule out a gain"
    return replace(verdict, decision=Decision.UNDECIDED, reason=reason)


def _pair(setting: Setting) -> str:
    return f"{setting.algorithm or 'auto'}/{setting.protocol or 'auto'}"


def _was_launched(trial: Trial) -> bool:
    """Return whether a trial tells of its setting: what never started on a machine does not."""
    return trial.result.outcome is not Outcome.INVALID or not trial.result.wall_s
