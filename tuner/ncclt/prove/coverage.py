"""Minimum coverage of a search for a `keep-default` verdict."""

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
    # A trial that never started on a machine shows nothing of its setting.
    launched = [t for t in trials if t.result.outcome is not Outcome.INVALID or not t.result.wall_s]
    tried = [t for t in launched if t.tries_setting and not t.setting.is_default]
    measured = {t.setting for t in tried if t.score_us is not None}
    pairs = list(dict.fromkeys(_pair(setting) for setting in anchors))
    done, started = {_pair(setting) for setting in measured}, {_pair(t.setting) for t in tried}
    return Coverage(
        settings=len(measured),
        measured=tuple(pair for pair in pairs if pair in done),
        failed=tuple(pair for pair in pairs if pair in started - done),
        untried=tuple(pair for pair in pairs if pair not in started),
        channels=tuple(sorted({setting.channels for setting in measured if setting.channels is not None})),
        converged=converged,
        remaining_gain=remaining_gain,
    )


def require_coverage(verdict: Verdict, coverage: Coverage | None) -> Verdict:
    """Turn keep-default into undecided where too few settings were tried; without coverage the verdict stays."""
    if coverage is None or coverage.is_enough or verdict.decision is not Decision.KEEP_DEFAULT:
        return verdict
    reason = f"{verdict.reason}; too few settings tried to rule out a gain"
    return replace(verdict, decision=Decision.UNDECIDED, reason=reason)


def _pair(setting: Setting) -> str:
    return f"{setting.algorithm or 'auto'}/{setting.protocol or 'auto'}"
