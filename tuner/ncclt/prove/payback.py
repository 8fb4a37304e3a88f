"""The cost of a study against what it saves: the steps after which a training has recovered the GPU time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ncclt.core.recommendation import Decision, Verdict
from ncclt.core.study import Study, Trial, gpu_seconds
from ncclt.core.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Payback:
    """After how many training steps a study has paid for itself.

    Attributes:
        steps: with the estimated speed-up.
        low, high: with the ends of its 95 % interval; high None = at the lower end it may never.
        exposed: share of the communication that computation does not hide, the only part that can shorten a step;
            None = not known, so all of it is assumed to be exposed.
    """

    steps: float
    low: float
    high: float | None
    exposed: float | None

    @property
    def words(self) -> str:
        """Return it as a sentence without its end, such as `pays back after 12,400 steps (9,800 to 17,000), ...`."""
        most = f"to {self.high:,.0f}" if self.high is not None else "or more"
        hidden = (
            "if no communication is hidden behind computation"
            if self.exposed is None
            else f"with {self.exposed * 100:.0f} % of the communication exposed"
        )
        return f"pays back after {self.steps:,.0f} steps ({self.low:,.0f} {most}), {hidden}"


def payback(verdict: Verdict, workload: Workload, *, gpu_s: float, gpus: int) -> Payback | None:
    """Return when a study has paid for itself; None where nothing is gained, nothing was paid, or no step is known.

    Args:
        verdict: of what is delivered.
        workload: may know how much of its communication is exposed.
        gpu_s: cost of all launches of the study, GPU seconds.
        gpus: of the job.
    """
    if verdict.decision is not Decision.TUNED or gpu_s <= 0 or workload.provenance.whole_file:
        return None
    total_us = verdict.default_us
    exposed = None if workload.exposed_us is None else min(1.0, workload.exposed_us / total_us)

    def steps(speedup: float) -> float | None:
        # Hidden communication costs no time, however slow it is; all messages are assumed to be equally exposed.
        saved_s = total_us * 1e-6 * (1 - 1 / speedup) * (1.0 if exposed is None else exposed)
        return gpu_s / (saved_s * gpus) if saved_s > 0 else None

    estimated, least = steps(verdict.speedup), steps(verdict.interval[1])
    if estimated is None or least is None:
        return None
    return Payback(steps=estimated, low=least, high=steps(verdict.interval[0]), exposed=exposed)


def payback_of(study: Study, trials: Iterable[Trial], verdict: Verdict | None) -> Payback | None:
    """Return when a study has paid for itself by all its trials; None as for `payback`, or without a verdict."""
    if verdict is None:
        return None
    return payback(verdict, study.workload, gpu_s=gpu_seconds(trials, study.cluster), gpus=study.cluster.world_size)


def cost_words(study: Study, trials: Sequence[Trial], verdict: Verdict | None) -> str:
    """Return as text what the launches of a study cost and when that is recovered.

    Args:
        study: the study.
        trials: all of them.
        verdict: of what it delivers; None = there is none yet.
    """
    seconds = gpu_seconds(trials, study.cluster)
    amount = f"{seconds / 3600:.2f} GPU hours" if seconds >= 360 else f"{seconds:.0f} GPU seconds"
    words = f"SIMULATED, about {amount} on a real cluster" if study.simulated else amount
    won = payback_of(study, trials, verdict)
    if won is None and verdict and verdict.decision is Decision.TUNED and study.workload.provenance.whole_file:
        return (
            f"{words}; when it pays back is not known: {study.workload.name} is a whole file, number of steps unknown"
        )
    return f"{words}; it {won.words}" if won else words
