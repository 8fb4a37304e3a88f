"""Proof: default and policy measured in turn, judged by blocks."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ncclt.core.recommendation import Decision, Verdict

if TYPE_CHECKING:
    from numpy.typing import NDArray

MIN_EFFECT = 0.02
"""Gain of communication time per step below which changing anything is not worth it."""

MAX_MESSAGE_LOSS = 0.03
"""Loss that no message of weight may suffer for the sake of the others."""

MIN_BLOCKS = 4
"""Fewer A B B A blocks than this decide nothing."""

_RESAMPLES = 10_000
_CONFIDENCE = 0.95

# Two-sided 97.5 % quantiles of Student's t for 1 to 30 degrees of freedom (any table of the distribution).
_T975 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """An estimate with its 95 % interval."""

    estimate: float
    low: float
    high: float


def block_speedups(default_us: Sequence[float], policy_us: Sequence[float]) -> tuple[float, ...]:
    """Return one speed-up per A B B A block: geometric mean of its two defaults over that of its two policies.

    A drift that is linear in time over a block shifts both means alike and cancels.

    Args:
        default_us, policy_us: time per step of each launch in order, µs, equally many, an even number.
    """
    if len(default_us) != len(policy_us) or len(default_us) % 2:
        raise ValueError("a block has two launches of the default and two of the policy")
    pairs = zip(default_us[::2], default_us[1::2], policy_us[::2], policy_us[1::2], strict=True)
    return tuple(math.sqrt(a1 * a2 / (b1 * b2)) for a1, a2, b1, b2 in pairs)


def bootstrap_interval(speedups: Sequence[float], *, seed: int) -> Interval:
    """Return the mean log speed-up and its 95 % interval, back in ratios.

    The percentile interval of a small sample is too narrow; its levels are widened from the normal to Student's t
    and by sqrt(n / (n - 1)) (expanded percentile interval: Hesterberg, "What Teachers Should Know about the
    Bootstrap", The American Statistician 69, 2015, section 4.3).
    """
    logs: NDArray[np.float64] = np.log(np.asarray(speedups, dtype=np.float64))
    n = len(logs)
    rng = np.random.default_rng(seed)
    means = logs[rng.integers(0, n, size=(_RESAMPLES, n))].mean(axis=1)
    t = _T975[n - 2] if n - 2 < len(_T975) else statistics.NormalDist().inv_cdf((1 + _CONFIDENCE) / 2)
    tail = statistics.NormalDist().cdf(-t * math.sqrt(n / (n - 1)))
    low, high = np.quantile(means, [tail, 1 - tail])
    return Interval(
        estimate=float(np.exp(logs.mean())),
        low=float(np.exp(low)),
        high=float(np.exp(high)),
    )


def judge(
    default_us: Sequence[float],
    policy_us: Sequence[float],
    *,
    seed: int,
    failure: str = "",
    worst_message: str = "",
    worst_loss: float = 0.0,
    min_effect: float = MIN_EFFECT,
) -> Verdict:
    """Decide between the default and a policy.

    `tuned` needs the estimated gain to reach `min_effect`, the whole 95 % interval to lie above 1, no failed or wrong
    launch, and no message of weight slower by more than `MAX_MESSAGE_LOSS`.

    Args:
        default_us, policy_us: communication time per step of each launch, µs, in A B B A order.
        seed: of the bootstrap.
        failure: why a launch failed or gave wrong data; disqualifies.
        worst_message, worst_loss: the message that lost most and its loss as a share, 0.05 = 5 % slower.
        min_effect: smallest gain worth a change, as a share.
    """
    speedups = block_speedups(default_us, policy_us)
    if len(speedups) >= MIN_BLOCKS:
        interval = bootstrap_interval(speedups, seed=seed)
    else:
        interval = Interval(estimate=1.0, low=0.0, high=math.inf)
    percent = (
        f"{(interval.estimate - 1) * 100:+.1f} % (95 % interval {_percent(interval.low)} to {_percent(interval.high)})"
    )
    if failure:
        decision, reason = Decision.KEEP_DEFAULT, f"the policy is disqualified: {failure}"
    elif len(speedups) < MIN_BLOCKS:
        decision, reason = Decision.KEEP_DEFAULT, f"only {len(speedups)} of {MIN_BLOCKS} blocks were measured"
    elif worst_loss > MAX_MESSAGE_LOSS:
        decision = Decision.KEEP_DEFAULT
        reason = f"{worst_message} would be {worst_loss * 100:.1f} % slower, more than {MAX_MESSAGE_LOSS * 100:.0f} %"
    elif interval.low <= 1.0:
        decision, reason = Decision.KEEP_DEFAULT, f"no gain is proven: {percent}"
    elif interval.estimate < 1.0 + min_effect:
        decision, reason = (
            Decision.KEEP_DEFAULT,
            f"the gain of {percent} is below the minimum of {min_effect * 100:.0f} %",
        )
    else:
        decision, reason = Decision.TUNED, f"communication per step is faster by {percent} in {len(speedups)} blocks"
    return Verdict(
        decision=decision,
        reason=reason,
        speedup=interval.estimate,
        interval=(interval.low, interval.high),
        blocks=len(speedups),
        default_us=statistics.median(default_us) if default_us else 0.0,
        policy_us=statistics.median(policy_us) if policy_us else 0.0,
    )


def nothing_better(default_us: float, *, why: str) -> Verdict:
    """Return the verdict where the search found nothing to compare with the default.

    Args:
        default_us: communication time per step of the default, µs.
        why: one sentence for people.
    """
    return Verdict(
        decision=Decision.KEEP_DEFAULT,
        reason=why,
        speedup=1.0,
        interval=(1.0, 1.0),
        blocks=0,
        default_us=default_us,
        policy_us=default_us,
    )


def _percent(ratio: float) -> str:
    return f"{(ratio - 1) * 100:+.1f} %" if math.isfinite(ratio) else "unknown"
