"""The end of a study, the same wherever it is shown: verdict, gain, the one command, and why it is that one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ncclt.core.attestation import Form
from ncclt.core.policy import Policy, uniform_policy
from ncclt.core.recommendation import Decision, Recommendation
from ncclt.core.setting import Setting
from ncclt.core.study import Study, Trial
from ncclt.deliver.use import Use, use_of
from ncclt.nccl.compile import compile_policy
from ncclt.prove.collapse import MIN_GAIN
from ncclt.prove.confirm import confirmed_times
from ncclt.prove.payback import Gain, ceiling_words, cost_words, gain_of
from ncclt.search.assemble import Times, expected_us


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """What a study with a verdict says at its end.

    Attributes:
        label: the mark of results that were not measured here; empty = they were.
        verdict: one sentence.
        use: the form in which the result is used, with its command.
        gain: what that saves; None = nothing.
        worth: (word, sentence) about the gain: what could be saved at most, what is saved, what that is worth.
        other: about the other form in which it could be delivered; empty where there is nothing to say.
    """

    label: str
    verdict: str
    use: Use
    gain: Gain | None
    worth: tuple[tuple[str, str], ...]
    other: str

    def to_document(self) -> dict[str, Any]:
        """Return its facts as fields of the document of a study."""
        gain, use = self.gain, self.use
        return {
            "use": {
                "form": use.form.value if use.form else None,
                "command": use.command or None,
                "speedup": use.proven.verdict.speedup if use.form else None,
                "interval": use.proven.verdict.to_document()["interval"] if use.form else None,
                "why": self.other or use.why,
            },
            "gain_ms": gain.saved_us[0] / 1e3 if gain else None,
            "gain_ms_interval": [us / 1e3 for us in gain.saved_us[1:]] if gain else None,
            "step_gain_ms": gain.shorter_us[0] / 1e3 if gain and gain.exposed is not None else None,
            "steps_per_day": gain.steps_per_day if gain else None,
            "gpu_hours_per_week": gain.gpu_hours_per_week if gain else None,
            "payback_hours": gain.payback_hours if gain else None,
            "payback_steps": gain.payback_steps[0] if gain and gain.payback_steps else None,
        }


def ending_of(
    study: Study,
    trials: Sequence[Trial],
    found: Recommendation,
    *,
    source: str = "",
    build: bool = False,
    steps_per_day: int | None = None,
) -> Ending:
    """Return the end of a study.

    Args:
        study: the study.
        trials: all of them.
        found: what it published.
        source, build: as for `use_of`.
        steps_per_day: as for `gain_of`.
    """
    use = use_of(found, source=source, build=build)
    gain = gain_of(study, trials, use.proven.verdict, steps_per_day=steps_per_day)
    told = {
        "at most": ceiling_words(study.workload),
        "gain": gain.words if gain else "",
        "worth": gain.worth if gain else "",
        "cost": cost_words(study, trials, gain),
    }
    return Ending(
        label=study.label,
        verdict=_verdict(found, use),
        use=use,
        gain=gain,
        worth=tuple((word, sentence) for word, sentence in told.items() if sentence),
        other=_other(study, trials, found, use),
    )


def _verdict(found: Recommendation, use: Use) -> str:
    verdict, what = use.proven.verdict, f"{found.model} on {found.cluster}"
    if verdict.decision is not Decision.TUNED:
        return f"{verdict.decision}: NCCL's own choice stays for {what}: {verdict.reason}"
    low, high = verdict.interval
    return (
        f"tuned: {what} communicates {verdict.speedup:.3f}x as fast as with NCCL's own choice "
        f"(95 % interval {low:.3f} to {high:.3f}, {verdict.blocks} blocks)"
    )


def _other(study: Study, trials: Sequence[Trial], found: Recommendation, use: Use) -> str:
    """Say what the form that is not used would give; empty where none is used."""
    table, variables = found.table.verdict, found.variables.verdict if found.variables else None
    if use.form is Form.VARIABLES:
        if table.decision is not Decision.TUNED:
            return ""
        return f"the table per size measured {table.speedup:.3f}x, which is not proven to be more"
    if use.form is None:
        return ""
    if variables is None:
        why = _why_no_variables(confirmed_times(trials), study)
        return f"variables alone cannot: {why}"
    if variables.decision is Decision.TUNED:
        return f"variables alone give {variables.speedup:.3f}x"
    return f"variables alone were not proven: {variables.reason}"


def _why_no_variables(times: Times, study: Study) -> str:
    """Say what the best single setting takes, and why variables do not deliver it."""
    workload, version = study.workload, study.cluster.version
    collectives = workload.collectives

    def time_us(policy: Policy) -> float:
        return expected_us(policy, times, workload, version=version, by_variables=True)

    def forced(setting: Setting) -> Policy:
        return uniform_policy(setting, collectives, version=version)

    default_us = time_us(Policy())
    settings = [setting for setting in times.by_setting if not setting.is_default]
    if not settings or math.isinf(default_us):  # early studies, whose launches are not all kept
        return "no policy that they can express was proven"
    best_us, _, best = min((time_us(forced(s)), s.digest(), s) for s in settings)
    took = f"takes {best_us / 1e3:.4g} ms {workload.per}, NCCL's own choice {default_us / 1e3:.4g}"
    figures = f"{best.label} on all sizes {took}"
    if best_us > default_us * (1 - MIN_GAIN):
        return f"no single setting is as good; the best, {figures}"
    reasons = compile_policy(forced(best), version=version, collectives=collectives).reasons
    return f"{figures}, but {reasons[0] if reasons else 'it was not confirmed by a second launch'}"
