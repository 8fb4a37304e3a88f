"""The verdict on pairs of launches, valid after any number of blocks."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from ncclt.core.budget import MIN_BLOCKS
from ncclt.core.message import Message
from ncclt.core.plural import count_noun
from ncclt.core.recommendation import MIN_EFFECT as MIN_EFFECT
from ncclt.core.recommendation import Decision, Verdict
from ncclt.prove.confidence import Interval, estimate_centre, estimate_interval, log_capital
from ncclt.prove.levels import BORNE_OUT, FALSE_TUNED, INTERVAL_ERROR

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_MESSAGE_LOSS = 0.03
"""Loss that no message of weight may suffer for the gain of the others."""

GRAVE_LOSS = 0.05
"""Loss of a whole policy that must be ruled out, in addition to proving a gain, before it is called `tuned`."""

FALSE_TUNED_GRAVE = 1 / 3000
"""`FALSE_TUNED` for a policy that loses this much: a worse mistake, so held to a stricter level."""

_CLEAR_DEVIATIONS = 3.0
"""Standard deviations of a single pair between the estimate and such a loss, so that each pair alone refutes it."""

_HOPELESS_DEVIATIONS = 1.28
"""Standard errors between an estimated gain and the minimum below it at which a proof is given up: nine of ten policies
that gain the minimum are above that at any one look."""

FALSE_VETO = 0.05
"""Probability that any message vetoes a policy that slows no message by more than is allowed."""

_CLEARED = math.log(2.0)
"""Capital of a bet against a loss above `MAX_MESSAGE_LOSS` that clears a message which loses something."""

_FORESIGHT = 100
"""Blocks up to which it is reported how many would decide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """Evidence of a verdict: paired launches of default and policy, two pairs per block.

    Attributes:
        default_us, policy_us: time per step of each launch, µs, in pairs and in order.
        losses: message of weight that the policy changes -> log of its time over the default's, one per pair.
        separable: whether the policy can leave any of these messages to NCCL and stay what it is for the others.
        measured_gains: log speed-up of each pair by the times as they were measured, where the times above count what
            the policy leaves to NCCL as the same on both sides; empty where nothing is.
    """

    default_us: tuple[float, ...]
    policy_us: tuple[float, ...]
    losses: Mapping[Message, tuple[float, ...]] = field(default_factory=dict)
    separable: bool = False
    measured_gains: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if len(self.default_us) != len(self.policy_us) or len(self.default_us) % 2:
            raise ValueError("a block has two launches of the default and two of the policy")

    @property
    def blocks(self) -> int:
        """Return the number of whole blocks."""
        return len(self.default_us) // 2

    @property
    def gains(self) -> NDArray[np.float64]:
        """Return the log speed-up of each pair."""
        logs: NDArray[np.float64] = np.log(np.asarray(self.default_us)) - np.log(np.asarray(self.policy_us))
        return logs

    def first(self, blocks: int) -> Pairs:
        """Return only the first blocks; if there are fewer, they are repeated."""

        def cut(values: Sequence[float]) -> tuple[float, ...]:
            return tuple(values[i % len(values)] for i in range(2 * blocks))

        return Pairs(
            default_us=cut(self.default_us),
            policy_us=cut(self.policy_us),
            losses={message: cut(logs) for message, logs in self.losses.items()},
            separable=self.separable,
            measured_gains=cut(self.measured_gains) if self.measured_gains else (),
        )


def block_speedups(default_us: Sequence[float], policy_us: Sequence[float]) -> tuple[float, ...]:
    """Return one speed-up per block: geometric mean of its two defaults over that of its two policies.

    A drift that is linear in time over a block shifts both means equally and cancels.

    Args:
        default_us, policy_us: time per step of each launch in order, µs, equally many, an even number.
    """
    gains = Pairs(default_us=tuple(default_us), policy_us=tuple(policy_us)).gains
    return tuple(float(ratio) for ratio in np.exp((gains[::2] + gains[1::2]) / 2))


def decide(pairs: Pairs, *, min_effect: float = MIN_EFFECT) -> Decision:
    """Decide between default and policy, or return that the pairs do not suffice; may be called after each block.

    `tuned`: bets against "no gain" have won 1 / `FALSE_TUNED`, and a loss of `GRAVE_LOSS` is ruled out. The estimated
    gain must reach `min_effect`, and no message of weight be suspected to be slower by more than `MAX_MESSAGE_LOSS`,
    unless the policy is delivered without it (`find_dropped_messages`). The times as measured must bear it out too
    (`_is_borne_out`).
    `keep-default`: a gain of `min_effect` is refuted at the level of the interval, or no more to be expected, or such a
    loss is shown of a message that cannot be left out (at `FALSE_VETO` shared among all messages).
    """
    if pairs.blocks < MIN_BLOCKS:
        return Decision.UNDECIDED
    gains, worthwhile = pairs.gains, math.log1p(min_effect)
    if _is_hopeless(gains, worthwhile) or _is_refuted(gains, worthwhile):
        return Decision.KEEP_DEFAULT
    harmed, suspected = _find_losers(pairs)
    if harmed and not pairs.separable:
        return Decision.KEEP_DEFAULT
    proven = float(log_capital(gains)) >= -math.log(FALSE_TUNED) and _rules_out_loss(gains)
    if (
        proven
        and float(estimate_centre(gains)) >= worthwhile
        and not _is_held_back(pairs, suspected)
        and _is_borne_out(pairs)
    ):
        return Decision.TUNED
    return Decision.UNDECIDED


def find_dropped_messages(pairs: Pairs) -> tuple[Message, ...]:
    """Find the slower-looking messages that a policy leaves to NCCL once it is `tuned`, the worst first.

    The gain that was proven includes what they lost, so it is true of the rest too. That one of them was faster, and
    only looked slower, costs its gain.
    """
    return _find_losers(pairs)[1] if pairs.separable else ()


def _is_held_back(pairs: Pairs, suspected: Sequence[Message]) -> bool:
    """Check that slower-looking messages hold a policy back: they cannot be left out, or nothing else is left."""
    return bool(suspected) and (not pairs.separable or len(suspected) == len(pairs.losses))


def _is_borne_out(pairs: Pairs) -> bool:
    """Check that the times as they were measured show two thirds of the gain.

    They hold the noise of all messages, so they alone would need many more launches. But if the policy slowed down what
    it leaves to NCCL, only they would show it.
    """
    if not pairs.measured_gains:
        return True
    return float(estimate_centre(np.array(pairs.measured_gains))) >= BORNE_OUT * float(estimate_centre(pairs.gains))


def _is_refuted(gains: NDArray[np.float64], gain: float) -> bool:
    return float(log_capital(-gains, -gain)) >= math.log(2 / INTERVAL_ERROR)


def _is_hopeless(gains: NDArray[np.float64], worthwhile: float) -> bool:
    """Check that more launches would hardly show the minimum effect.

    To give up costs a small gain at most, so it needs no bet; `tuned` becomes rarer by it, and never more frequent.
    """
    error = _deviation(gains) / math.sqrt(len(gains))
    return float(estimate_centre(gains)) + _HOPELESS_DEVIATIONS * error < worthwhile


def _deviation(gains: NDArray[np.float64]) -> float:
    """Return the standard deviation of single pairs by their mean distance from the centre.

    The mean deviation of a normal distribution is sqrt(2 / pi) standard deviations; an outlier makes it larger.
    """
    return float(np.abs(gains - estimate_centre(gains)).mean()) * math.sqrt(math.pi / 2)


def _rules_out_loss(gains: NDArray[np.float64]) -> bool:
    """Check that a loss of `GRAVE_LOSS` is ruled out.

    For a loss to look like a gain by chance, the noise must be larger than the loss. If the noise is small, the
    distance of the estimate shows that. Otherwise bets against the loss have to win 1 / `FALSE_TUNED_GRAVE`, for which
    they need more pairs. It is one more condition for `tuned`, so it raises no error rate at any number of looks.
    """
    loss, centre = math.log1p(-GRAVE_LOSS), float(estimate_centre(gains))
    if centre - loss >= _CLEAR_DEVIATIONS * _deviation(gains):
        return True
    return float(log_capital(gains, loss)) >= -math.log(FALSE_TUNED_GRAVE)


def _find_losers(pairs: Pairs) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
    """Return the messages that are proven to lose more than they may, and those suspected of it, the worst first."""
    if not pairs.losses:
        return (), ()
    messages = list(pairs.losses)
    logs = np.array([pairs.losses[message] for message in messages])
    limit = math.log1p(MAX_MESSAGE_LOSS)
    shown = log_capital(logs, limit) >= math.log(len(messages) / FALSE_VETO)
    # Even odds for any loss make one message suspicious; among many, some have them by chance. The full correction, a
    # factor of their number, would hide real losses, and no correction would let noise reject every second policy.
    losing = log_capital(logs) >= math.log(len(messages)) / 2
    suspicious = losing & (log_capital(-logs, -limit) < _CLEARED)
    worst_first = np.argsort(-estimate_centre(logs), kind="stable")

    def among(chosen: NDArray[np.bool_]) -> tuple[Message, ...]:
        return tuple(messages[index] for index in worst_first if chosen[index])

    return among(shown), among(shown | suspicious)


def _is_immaterial(pairs: Pairs, *, min_effect: float) -> bool:
    """Check that the estimate is below the minimum effect, and a gain of twice the minimum is refuted."""
    if pairs.blocks < MIN_BLOCKS or float(estimate_centre(pairs.gains)) >= math.log1p(min_effect):
        return False
    return _is_refuted(pairs.gains, math.log1p(2 * min_effect))


def judge(
    pairs: Pairs,
    *,
    min_effect: float = MIN_EFFECT,
    failure: str = "",
    baseline_failure: str = "",
    baseline_name: str = "the NCCL default",
    ended: bool = True,
) -> Verdict:
    """Return the decision with its numbers and its reason.

    If the budget ends at a small gain near the minimum effect, no sensible number of blocks would show on which side
    it is. The decision is then to keep the default, not `undecided`.

    Args:
        min_effect: smallest gain that justifies a change, as a share.
        failure: why a launch of the policy failed or gave wrong data; disqualifies.
        baseline_failure: why a launch of the baseline failed, which ends an undecided proof.
        ended: no more blocks will be launched.
    """
    measured = pairs.blocks > 0
    interval = (
        estimate_interval([float(gain) for gain in pairs.gains], error=INTERVAL_ERROR)
        if measured
        else Interval(estimate=1.0, low=0.0, high=math.inf)
    )
    if failure:
        decision, reason = Decision.KEEP_DEFAULT, f"the policy failed: {failure}"
    else:
        decision = decide(pairs, min_effect=min_effect)
        settled = decision is not Decision.UNDECIDED or bool(baseline_failure)
        if ended and not settled and _is_immaterial(pairs, min_effect=min_effect):
            decision = Decision.KEEP_DEFAULT
        reason = _reason(decision, pairs, interval, min_effect=min_effect)
        if decision is Decision.UNDECIDED and baseline_failure:
            reason = f"{baseline_name} failed in the A/B test: {baseline_failure}"
    return Verdict(
        decision=decision,
        reason=reason,
        speedup=interval.estimate,
        interval=(interval.low, interval.high),
        blocks=pairs.blocks,
        default_us=statistics.median(pairs.default_us) if measured else 0.0,
        policy_us=statistics.median(pairs.policy_us) if measured else 0.0,
        min_effect=min_effect,
    )


def state_step_gain(verdict: Verdict, evidence: str) -> Verdict:
    """Return a verdict on step times with a reason that names steps instead of communication.

    Args:
        evidence: number of measurements, `12 blocks`.
    """
    if verdict.decision is not Decision.TUNED:
        return verdict
    gain = describe_gain(verdict.speedup, verdict.interval, evidence)
    return replace(verdict, reason=f"training steps are faster: {gain}")


def describe_gain(speedup: float, interval: tuple[float, float], evidence: str) -> str:
    """Return a speed-up with its interval: `+9.8 % (95 % CI +2.1 % to +14.0 %, 12 blocks)`."""
    low, high = map(format_change, interval)
    return f"{format_change(speedup)} (95 % CI {low} to {high}, {evidence})"


def _reason(decision: Decision, pairs: Pairs, interval: Interval, *, min_effect: float) -> str:
    gain = describe_gain(interval.estimate, (interval.low, interval.high), count_noun(pairs.blocks, "block"))
    threshold = f"{min_effect * 100:.3g} %"
    if decision is Decision.TUNED:
        return f"communication is faster: {gain}"
    if pairs.blocks < MIN_BLOCKS:
        return f"only {pairs.blocks} of at least {MIN_BLOCKS} blocks measured"
    harmed, suspected = _find_losers(pairs)
    if decision is Decision.UNDECIDED:
        doubt = _describe_doubt(pairs, gain, suspected, min_effect=min_effect)
        return f"{doubt}; {_estimate_more_blocks(pairs, min_effect=min_effect)}"
    if interval.high < 1.0:
        return f"the policy is slower: {gain}"
    if harmed and not pairs.separable:
        return f"{harmed[0].label} is {_loss(pairs, harmed[0])} slower, more than {MAX_MESSAGE_LOSS * 100:.0f} %"
    if interval.high < 1.0 + min_effect:
        return f"gain {gain} is below the {threshold} threshold"
    if decide(pairs, min_effect=min_effect) is Decision.KEEP_DEFAULT:
        return f"gain {gain} is most likely below the {threshold} threshold"
    return f"gain {gain} does not reach the {threshold} threshold; twice the threshold is ruled out"


def _describe_doubt(pairs: Pairs, gain: str, suspected: Sequence[Message], *, min_effect: float) -> str:
    if float(log_capital(pairs.gains)) < -math.log(FALSE_TUNED):
        return f"inconclusive: {gain}"
    if not _rules_out_loss(pairs.gains):
        return f"gain {gain}, but noise does not rule out a loss of {GRAVE_LOSS * 100:g} %"
    if _is_held_back(pairs, suspected):
        return f"gain {gain}, but {suspected[0].label} looks {_loss(pairs, suspected[0])} slower"
    if not _is_borne_out(pairs):
        shown = format_change(math.exp(float(estimate_centre(np.array(pairs.measured_gains)))))
        return f"gain {gain} on messages with rules, but only {shown} over all messages"
    return f"gain {gain} may be below the {min_effect * 100:.3g} % threshold"


def _estimate_more_blocks(pairs: Pairs, *, min_effect: float) -> str:
    blocks = pairs.blocks
    while blocks < _FORESIGHT:
        blocks += max(1, blocks // 8)
        if decide(pairs.first(blocks), min_effect=min_effect) is not Decision.UNDECIDED:
            return f"about {count_noun(blocks - pairs.blocks, 'more block')} should decide it (--blocks {blocks})"
    return "more blocks are unlikely to decide it"


def _loss(pairs: Pairs, message: Message) -> str:
    return f"{math.expm1(float(estimate_centre(np.array(pairs.losses[message])))) * 100:.1f} %"


def keep_default(default_us: float, *, why: str, min_effect: float = MIN_EFFECT) -> Verdict:
    """Return the verdict if the search found nothing that is worth comparing with the default.

    Args:
        default_us: communication time per step of the default, µs.
        min_effect: smallest gain that justifies a change, as a share.
    """
    return Verdict(
        decision=Decision.KEEP_DEFAULT,
        reason=why,
        speedup=1.0,
        interval=(0.0, math.inf),
        blocks=0,
        default_us=default_us,
        policy_us=default_us,
        min_effect=min_effect,
    )


def format_interval(pairs: Pairs) -> str:
    """Return the gain so far with its 95 % interval, `1.030x (0.99 to 1.05)`; at first it has no ends."""
    interval = estimate_interval([float(gain) for gain in pairs.gains], error=INTERVAL_ERROR)
    bounded = interval.low > 0 and interval.high < math.inf
    return f"{interval.estimate:.3f}x{f' ({interval.low:.2f} to {interval.high:.2f})' if bounded else ''}"


def format_change(ratio: float) -> str:
    """Return a ratio as a change: `+9.8 %`; `unknown` for an end that an interval does not have."""
    return f"{(ratio - 1) * 100:+z.1f} %" if math.isfinite(ratio) and ratio > 0 else "unknown"
