"""Verdicts of studies on the settings that a job runs today.

Every study runs through the pipeline of `ncclt tune` with three arms: the NCCL default, today's settings, and the
policy. The launches are replayed from recorded times with lognormal noise, as in bench/study_cost.py. Today's settings
are the best, the median and the worst single recorded setting of a workload. `true` is what the recording says, beside
what the study concluded with its 95 % interval; above 1, the default or the policy is faster than today. The last line
counts the intervals that hold the true ratio.

    python bench/today.py --landscape FILE.csv [--landscape ...] [--collective all_gather] [--workload bert]
                          [--noise 0.02] [--seed 0] [--json]
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import optuna

from landscapes import Case, recorded_cases
from ncclt.core.message import Collective, Message
from ncclt.core.policy import Policy
from ncclt.core.recommendation import Verdict
from ncclt.core.setting import Setting
from ncclt.core.trial import TrialResult
from ncclt.errors import NccltError
from ncclt.measure.testbed import Testbed
from output import Rows, build_parser
from study_cost import Replayed, run_tune


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One study: the verdicts on the default and on the policy, in comparison with today's settings."""

    landscape: str
    collective: str
    workload: str
    today: str
    noise: float
    default_decision: str
    default_speedup: float
    default_interval: tuple[float, float]
    default_true: float
    policy_decision: str
    policy_speedup: float | None
    policy_interval: tuple[float, float] | None
    policy_true: float
    policy_over_default: float
    launches: int


class Today(Replayed):
    """A runner whose default is what the job runs today."""

    def __init__(self, case: Case, setting: Setting, *, sigma: float, seed: int) -> None:
        super().__init__(case, sigma=sigma, seed=seed)
        self._today = setting

    def measure(self, setting: Setting, messages: Sequence[Message], *, repeat: int) -> TrialResult:
        """Draw one launch of today's settings."""
        assert setting.is_default, "nothing else is launched in this arm"
        return super().measure(self._today, messages, repeat=repeat)


def rank_settings(case: Case) -> list[tuple[float, Setting]]:
    """Return every recorded setting but the default, with its time per step in µs, the fastest first."""
    times_us = case.table @ case.calls
    recorded = [
        (float(us), setting) for us, setting in zip(times_us, case.settings, strict=True) if not setting.is_default
    ]
    return sorted(recorded, key=lambda pair: (pair[0], pair[1].digest()))


def run_study(case: Case, today: Setting, today_us: float, *, sigma: float, seed: int) -> Row:
    """Run one study to its verdict."""
    testbed = Testbed(
        runner=Replayed(case, sigma=sigma, seed=seed),
        by_today=Today(case, today, sigma=sigma, seed=seed + 1_000_003),
        today=(("NCCL_SETTING", today.label),),
        reason="bench",
        covers=case.covers,
        recorded=tuple(setting for setting in case.settings if not setting.is_default),
    )
    recommendation, trials = run_tune(case, testbed, seed=seed)
    assert recommendation.today is not None, "its arm was measured"
    table = recommendation.table
    over: Verdict | None = table.over_today
    # The interval is of the policy that was launched, whatever was decided.
    policy = table.policy if over is not None else Policy()
    return Row(
        landscape=case.landscape,
        collective=case.workload.messages[0].message.collective.value,
        workload=case.mix,
        today=today.label,
        noise=sigma,
        default_decision=recommendation.today.default.decision.value,
        default_speedup=recommendation.today.default.speedup,
        default_interval=recommendation.today.default.interval,
        default_true=today_us / case.default_us,
        policy_decision=table.verdict.decision.value,
        policy_speedup=over.speedup if over else None,
        policy_interval=over.interval if over else None,
        policy_true=today_us / case.policy_us(policy),
        policy_over_default=case.default_us / case.policy_us(policy),
        launches=len(trials),
    )


def main(argv: Sequence[str]) -> int:
    """Print the table, or one JSON document."""
    parser = build_parser(__doc__)
    parser.add_argument("--landscape", action="append", type=Path, required=True, metavar="FILE.csv", help="repeatable")
    parser.add_argument(
        "--collective", action="append", type=Collective, help="of the workloads; repeatable (default all_reduce)"
    )
    parser.add_argument("--workload", action="append", help="only these mixes; repeatable")
    parser.add_argument("--noise", type=float, default=0.02, help="sigma of the log of a time (default 0.02)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    if not 0 <= options.noise < 1:
        parser.error("--noise must be 0 to below 1")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    rows = Rows(as_json=options.json)
    for path, collective in itertools.product(options.landscape, options.collective or [None]):
        try:
            cases, left_out = recorded_cases(path, collective=collective)
        except NccltError as error:
            print(f"{path}: {error}", file=sys.stderr)
            return 2
        for sentence in left_out:
            print(f"left out: {sentence}", file=sys.stderr)
        for case in cases:
            if options.workload and case.mix not in options.workload:
                continue
            ranked = rank_settings(case)
            for today_us, today in dict.fromkeys((ranked[0], ranked[len(ranked) // 2], ranked[-1])):
                rows.add(run_study(case, today, today_us, sigma=options.noise, seed=options.seed))
    pairs = [(row[f"{side}_interval"], row[f"{side}_true"]) for row in rows for side in ("default", "policy")]
    held = [low <= true <= high for (low, high), true in filter(all, pairs)]
    rows.end(f"{sum(held)} of {len(held)} intervals hold the true ratio", intervals=len(held), held=sum(held))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
