"""Bets and error levels of all verdicts, those inside a job included.

This module is copied into the job of the user: standard library alone, Python 3.8, nothing of ncclt.
"""

SHARPNESS = (6.0, 24.0, 96.0, 384.0)
STAKE, WEIGHT = (0.1, 0.3, 0.8, 0.98), (0.05, 0.05, 0.45, 0.45)
"""Bets h(x) = STAKE * tanh(SHARPNESS * x). WEIGHT is the share of the capital of each stake, spread evenly over
SHARPNESS. Its inverse is the log ratio of a full bet, 0.26 % to 17 %: from below any useful minimum effect up to the
largest noise that still shows one. A stake below 1 survives outliers: one lost bet costs as much as 3 won bets earn at
0.8, and 6 at 0.98. With these two, eight won pairs may suffice (adr/0008; bench/bets.py compares them with the best
possible bets). The small stakes find gains that noise hides from large ones: 3 % among launches that differ by 10 %."""

FALSE_TUNED = 0.01
"""Probability, over any number of looks, that a policy without any gain is called `tuned`; inside a job over all arms
(adr/0008; bench/verdict.py and bench/live_decisions.py count)."""

INTERVAL_ERROR = 0.05
"""One minus the confidence of the intervals: both ends together, at any number of looks, and inside a job over all arms
(adr/0008; bench/verdict.py)."""

BORNE_OUT = 2 / 3
"""Min share of a gain in the times as measured, noise of messages without a rule included (adr/0014)."""
