"""How close are the bets of a proof to the best bets there could be?

A proof bets on the signs of paired log ratios, and ends once the capital has reached 100 (`prove/confidence.py`). Where
the noise is normal and both the gain and the noise are known, one bet beats all others: on each sign with the
probability that it has at that size of the ratio (the likelihood ratio is the e-value that grows fastest; Gruenwald, de
Heide and Koolen, "Safe Testing", JRSS B 86, 2024). In practice neither is known: `known` is an upper bound for every
method that is valid under any symmetric noise. Both look at the same pairs, after each block, from the third on.
The other conditions of a verdict are left out: bench/verdict.py has the whole.

    python bench/bets.py [--json] [--studies N] [--seed N]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ncclt.core.budget import MAX_BLOCKS, MIN_BLOCKS
from ncclt.prove.confidence import log_capital
from ncclt.prove.levels import FALSE_TUNED
from output import Rows, build_parser

CASES = ((0.02, 0.02), (0.03, 0.01), (0.03, 0.02), (0.05, 0.02), (0.05, 0.05), (0.1, 0.05))
"""Gain, and noise of a launch."""

LAUNCHES_PER_PAIR, PAIRS_PER_BLOCK = 2, 2

Ratios = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One way to bet in one case.

    Attributes:
        gain: true speed-up minus 1.
        sigma: of the log of a launch's time.
        method: `ours` or `known`.
        found: share of the studies in which the capital reached 100 within the most blocks of a proof.
        launches_mean, launches_p95: until then, all launches of a proof where it never did.
    """

    gain: float
    sigma: float
    method: str
    studies: int
    found: float
    launches_mean: float
    launches_p95: float


def known(gain: float, sigma: float) -> Callable[[Ratios], Ratios]:
    """Return the bets of who knows the gain and the noise: ln of the capital after the pairs along the last axis."""
    sharpness = np.log1p(gain) / (2 * sigma**2)  # a pair has twice the variance of a launch

    def capital(ratios: Ratios) -> Ratios:
        # 1 + tanh(x) = 2 / (1 + exp(-2x)), without the loss of digits where a bet is nearly lost
        won: Ratios = (np.log(2.0) - np.logaddexp(0.0, -2 * sharpness * ratios)).sum(axis=-1)
        return won

    return capital


def row(method: str, gain: float, sigma: float, *, studies: int, seed: int) -> Row:
    """Bet in one case; both methods draw the same pairs."""
    pairs = MAX_BLOCKS * PAIRS_PER_BLOCK
    noise = np.random.default_rng(seed).normal(0.0, sigma * np.sqrt(2), (studies, pairs))
    ratios = np.log1p(gain) + noise
    capital = log_capital if method == "ours" else known(gain, sigma)
    looks = np.arange(MIN_BLOCKS * PAIRS_PER_BLOCK, pairs + 1, PAIRS_PER_BLOCK)
    reached = np.stack([capital(ratios[:, :seen]) for seen in looks], axis=-1) >= -np.log(FALSE_TUNED)
    ended = np.where(reached.any(axis=-1), looks[reached.argmax(axis=-1)], pairs) * LAUNCHES_PER_PAIR
    return Row(
        gain=gain,
        sigma=sigma,
        method=method,
        studies=studies,
        found=float(reached.any(axis=-1).mean()),
        launches_mean=float(ended.mean()),
        launches_p95=float(np.percentile(ended, 95)),
    )


def main() -> None:
    """Run the cases and print them."""
    parser = build_parser(__doc__)
    parser.add_argument("--studies", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.studies < 1:
        parser.error("--studies must be at least 1")
    rows = Rows(as_json=options.json)
    for gain, sigma in CASES:
        for method in ("ours", "known"):
            rows.add(row(method, gain, sigma, studies=options.studies, seed=options.seed))
    rows.end("known: knows the true gain and noise; an upper bound for any bet that is valid under symmetric noise")


if __name__ == "__main__":
    main()
