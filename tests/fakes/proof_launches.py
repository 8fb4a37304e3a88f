"""Launches of a proof with the times that a test names."""

from ncclt.core.policy import Policy
from ncclt.core.setting import Setting
from ncclt.core.study import Arm, Phase, Trial
from ncclt.core.trial import Measurement, Outcome, TrialResult


def launch_pairs(workload, times, *, policy, arm=Arm.TABLE, whole=True):
    """Launch default and policy in turn; `times`: for each pair (small, large) of the default and of the policy, µs."""
    small, large = sorted((calls.message for calls in workload.messages), key=lambda message: message.size_bytes)
    trials = []

    def add(side, pair, setting, applied, times_us):
        measured = tuple(Measurement(message=m, samples_us=(us,)) for m, us in times_us.items())
        trials.append(
            Trial(
                number=len(trials),
                phase=Phase.PROVE,
                arm=side,
                block=pair,
                repeat=0,
                setting=setting,
                policy=applied,
                result=TrialResult(outcome=Outcome.OK, measurements=measured),
                score_us=sum(c.calls_per_step * times_us.get(c.message, 0.0) for c in workload.messages),
            )
        )

    for pair, sides in enumerate(times):
        for side, (small_us, large_us) in zip((Arm.DEFAULT, arm), sides, strict=True):
            parts = [{small: small_us, large: large_us}] if whole else [{small: small_us}, {large: large_us}]
            for part in parts:
                forced = Policy() if side is Arm.DEFAULT else policy
                setting = Setting(parameters=forced.parameters) if whole else forced.setting_for(next(iter(part)))
                add(side, pair, setting, forced if whole and not forced.is_default else None, part)
    return trials
