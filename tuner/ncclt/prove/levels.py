"""Bets and error levels of all verdicts, those inside a job included.

This module is copied into the job of the user: standard library alone, Python 3.8, nothing of ncclt.
"""

SHARPNESS = (6.0, 24.0, 96.0, 384.0)
STAKE, WEIGHT = (0.1, 0.3, 0.8, 0.98), (0.05, 0.05, 0.45, 0.45)
"""The bets: h(x) = STAKE * tanh(SHARPNESS * x). WEIGHT is each stake's share of the capital, spread evenly over
SHARPNESS, which is one over the size of a ratio that counts in full, 0.26 % to 17 %: finer than any minimum effect of
use, and as coarse as the noise under which one can be shown. A stake below 1 survives outliers: one lost bet costs as
much as 3 won ones bring at 0.8, and as 6 bring at 0.98. With these two, eight pairs that are all won may suffice
(adr/0008; bench/bets.py compares them with the best possible bets). The small stakes win slowly where noise hides the
gain from large ones: a gain of 3 % where launches differ by 10 %."""

FALSE_TUNED = 0.01
"""Probability, over any number of looks, that a policy without any gain is called `tuned`; inside a job over all arms
(adr/0008; bench/verdict.py and bench/live_decisions.py count)."""

INTERVAL_ERROR = 0.05
"""One minus the confidence of the intervals: both ends together, at any number of looks, and inside a job over all arms
(adr/0008; bench/verdict.py)."""

BORNE_OUT = 2 / 3
"""Share of a gain that the times must show by another measure too, as they were measured, with the
noise of what is left to NCCL (adr/0014)."""
