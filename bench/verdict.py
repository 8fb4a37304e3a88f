"""How often is a verdict wrong, and how soon is it right, beside what the best of many trials would have claimed?

Each study proves one policy against the default with the code of `ncclt tune`; only the launches are invented, so the
truth is known. Unless a case says otherwise one launch in a hundred takes five times as long, and all times rise by
10 % in a straight line over the longest run. The policy is launched as a whole (k = 1), or as where no plugin can be
loaded by each of its k settings, and then the default as often.

`tuned_low` and `tuned_high` are the 95 % interval of the share that is called `tuned`. `coverage` is the share of the
studies whose final 95 % interval holds the true gain of what was launched, `harm_rate` that of the studies which
deliver a rule for a message that truly loses more than 3 %. `best_of_n_rate` is the usual practice: launch N settings
once each, take the fastest, and call it a gain when it beats the one launch of the default by 2 %. In cases called
"selected" the policy is that winner.

Where the recorded two-node grid is there (GRID), its two repetitions give the noise of cases called "recorded": the
logarithm of a time of the first, disturbed one over that of the second. A launch draws a size, and one repetition.

    python bench/verdict.py [--json] [--studies N | --quick] [--case PATTERN] [--blocks N] [--trials N] [--seed N]
"""

from __future__ import annotations

import fnmatch
import functools
import math
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from landscapes import DATA, percentile_95, read_tables
from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.budget import MAX_BLOCKS
from ncclt.core.cluster import Cluster
from ncclt.core.message import Collective, Message
from ncclt.core.policy import Policy, Rule
from ncclt.core.recommendation import Decision
from ncclt.core.setting import DEFAULT, Setting
from ncclt.core.study import Arm
from ncclt.core.trial import Measurement, Outcome, TrialResult
from ncclt.core.workload import MessageCalls, Provenance, Workload
from ncclt.prove.interleave import Proof
from ncclt.prove.proof import build_policy_verdict
from ncclt.prove.verdict import MAX_MESSAGE_LOSS, MIN_EFFECT
from ncclt.testing.fakes import FakeTrialLog
from output import Rows, build_parser

CLUSTER = Cluster(
    name="bench",
    gpus_per_node=8,
    gpu="A100",
    compute_capability=80,
    link_class="nvswitch",
    link_gbps=300.0,
    nccl_version="2.27.3",
)
SETTINGS = tuple(
    (a, p) for a in (Algorithm.TREE, Algorithm.RING) for p in (Protocol.LL, Protocol.LL128, Protocol.SIMPLE)
)
GRID = DATA / "mi355x_rccl_2node_broadcast_grid.csv"
OUTLIER = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One truth.

    Attributes:
        name: as it is printed.
        gain: true speed-up of the policy minus 1.
        sigma: of the log of a launch's time.
        message_sigma: the same of each message by itself.
        messages: how many, of equal weight.
        rules: how many of them, the smallest first, the policy has rules for; the others are left to NCCL. 0 = all.
        rest_gain: true gain of the messages without a rule: 0, unless the policy reaches what it should leave alone.
        first_gain: true gain of the smallest message, where it is not the policy's.
        drift: share by which times have risen at a share of the longest run.
        memory: correlation of a launch's noise with the one before.
        outliers: probability that a launch takes `OUTLIER` times as long.
        wrong_from: launch of the policy that gives wrong data, counted from 0.
        selected: the policy is the fastest of many single launches.
        k: settings of the policy; above 1 each is a launch of its own.
        noise: draws the log of a launch's time instead of the normal distribution of `sigma`.
        rhythm: disturbs the log of the time of the launch with a number; its phase is drawn for each study.
        alone: `_bimodal` disturbs the default alone; the policy always takes what the default mostly does.
        three: an arm of variables, as fast as the default, is proven beside the table.
    """

    name: str
    gain: float = 0.0
    sigma: float = 0.02
    message_sigma: float = 0.0
    messages: int = 1
    rules: int = 0
    rest_gain: float = 0.0
    first_gain: float | None = None
    drift: Callable[[float], float] = lambda share: 0.10 * share
    memory: float = 0.0
    outliers: float = 0.01
    wrong_from: int | None = None
    selected: bool = False
    k: int = 1
    noise: Callable[[random.Random], float] | None = None
    rhythm: Callable[[int], float] = lambda _number: 0.0
    alone: bool = False
    three: bool = False

    def gain_of(self, message: Message, gain: float) -> float:
        """Return the true gain of a message where that of the others is given."""
        if self.rules and message.size_bytes >= 1 << (16 + self.rules):
            return self.rest_gain
        return self.first_gain if message.size_bytes == 1 << 16 and self.first_gain is not None else gain


def _warming(share: float) -> float:
    return 0.10 * math.exp(-8 * share)


def _step(share: float) -> float:
    return 0.10 if share > 0.15 else 0.0


def _bimodal(draw: random.Random) -> float:
    return draw.gauss(0.0, 0.01) + (math.log(1.2) if draw.random() < 0.7 else 0.0)


def _student(draw: random.Random) -> float:
    """Draw from Student's t with 2 degrees of freedom, in units of 2 %."""
    return 0.02 * draw.gauss(0.0, 1.0) / math.sqrt(draw.expovariate(1.0))


def _slow_rank(draw: random.Random) -> float:
    """Draw the slowest of eight ranks, of which one is 5 % slower in 30 % of the launches."""
    return max(draw.gauss(0.0, 0.01) for _ in range(8)) + (0.05 if draw.random() < 0.3 else 0.0)


def _sine(number: int) -> float:
    return 0.10 * math.sin(2 * math.pi * number / 8)


def _in_step(number: int) -> float:
    """Disturb every launch that A B B A B A A B gives to the default."""
    return 0.10 if "ABBABAAB"[number % 8] == "A" else 0.0


def _one_in(period: int, amplitude: float) -> Callable[[int], float]:
    """Return a rhythm that disturbs every launch whose number is a multiple of the period, from the phase on."""
    return lambda number: 0.0 if number % period else math.log1p(amplitude)


def _neighbour(share: float) -> float:
    """Return the load of a neighbour that switches on and off, four times over the longest run."""
    return 0.25 if int(8 * share) % 2 else 0.0


@functools.cache
def _recorded() -> tuple[tuple[float, ...], ...]:
    """Return for each setting and size of the grid the logs of its repetitions over the least disturbed one."""
    groups: dict[tuple[Setting, int], list[float]] = {}
    for row in (row for original in read_tables(GRID)[0] for row in original.rows):
        groups.setdefault((row.setting, row.size_bytes), []).append(row.time_us)
    return tuple(tuple(math.log(time / min(times)) for time in times) for times in groups.values() if len(times) > 1)


def _disturbed(draw: random.Random) -> float:
    return draw.choice(draw.choice(_recorded())) + draw.gauss(0.0, 0.01)


BY_ONE_OF_6 = 1 / (6 / 1.03 - 5) - 1
"""Gain of one of six equal messages with which the step gains 3 %."""

CASES = (
    *(Case(name=f"flat, noise {s:.1%}", sigma=s) for s in (0.005, 0.02, 0.05, 0.20)),
    *(Case(name=f"flat, noise {s:.1%}, selected", sigma=s, selected=True) for s in (0.02, 0.05, 0.20)),
    Case(name="flat, noise 2.0%, warming up", drift=_warming),
    Case(name="flat, noise 2.0%, one jump", drift=_step),
    Case(name="flat, noise 2.0%, correlated", memory=0.8),
    *(Case(name=f"flat, noise 2.0%, AR(1) of {m:g}", memory=m) for m in (-0.5, 0.5, 0.95)),
    Case(name="flat, noise 2.0%, drift 50%", drift=lambda share: 0.5 * share),
    Case(name="flat, noise 2.0%, outliers in 10%", outliers=0.10),
    Case(name="flat, noise 2.0%, period 8", rhythm=_sine),
    Case(name="flat, noise 2.0%, period 8 in step", rhythm=_in_step),
    Case(name="flat, noise 2.0%, every other +10%", rhythm=lambda number: 0.10 * (number % 2)),
    *(
        Case(
            name=f"flat, 1 of {period} launches +{amplitude:.0%}, {arms} arms",
            rhythm=_one_in(period, amplitude),
            three=arms == 3,
        )
        for arms in (2, 3)
        for period in range(2, 13)
        for amplitude in (0.02, 0.10, 0.25, 0.50)
    ),
    Case(name="flat, noise 2.0%, a neighbour of 25%", drift=_neighbour),
    Case(name="flat, one slow rank in 30% of launches", noise=_slow_rank),
    Case(name="flat, Student t, 2 degrees", noise=_student),
    *(Case(name="flat, bimodal +20% in 70%", noise=_bimodal, k=k) for k in (1, 4, 6)),
    *(Case(name=f"flat, default alone bimodal, k = {k}", noise=_bimodal, alone=True, k=k) for k in (1, 4, 6)),
    *(Case(name="flat, recorded noise", noise=_disturbed, k=k) for k in (1, 4, 6)),
    *(Case(name="flat, noise 5.0%", sigma=0.05, k=k) for k in (4, 6)),
    Case(name="gain 10%, bimodal +20% in 70%", gain=0.10, noise=_bimodal),
    *(
        Case(name=f"flat, noise {s:.1%}, rule for 1 of 6 messages", sigma=s, message_sigma=0.02, messages=6, rules=1)
        for s in (0.005, 0.02, 0.20)
    ),
    Case(name="flat, bimodal, rule for 1 of 6 messages", noise=_bimodal, messages=6, rules=1),
    Case(name="gain 3% by 1 of 6, noise 2.0%", gain=BY_ONE_OF_6, message_sigma=0.02, messages=6, rules=1),
    Case(name="gain 3% by 1 of 6, bimodal", gain=BY_ONE_OF_6, noise=_bimodal, messages=6, rules=1),
    *(
        Case(
            name=f"flat, rule for 1 of 6, others -{loss:.0%}, noise {s:.0%}",
            gain=1 / (6 - 5 / (1 - loss)) - 1,
            rest_gain=-loss,
            sigma=s,
            message_sigma=0.01,
            messages=6,
            rules=1,
        )
        for loss, s in ((0.02, 0.02), (0.05, 0.02), (0.05, 0.05), (0.10, 0.05))
    ),
    Case(name="gain 35%, recorded noise", gain=0.35, noise=_disturbed),
    Case(name="gain 35%, noise 2.0%", gain=0.35),
    Case(name="gain 35%, noise 5.0%", gain=0.35, sigma=0.05),
    Case(name="gain 5%, noise 2.0%, sums", gain=0.05, k=4),
    Case(name="gain 5%, noise 2.0%, drift 50%", gain=0.05, drift=lambda share: 0.5 * share),
    Case(name="gain 5%, Student t, 2 degrees", gain=0.05, noise=_student),
    *(Case(name=f"gain {g:.0%}, noise 2.0%", gain=g) for g in (0.01, 0.02)),
    *(
        Case(name=f"gain {g:.0%}, noise {s:.1%}", gain=g, sigma=s)
        for g, s in (
            (0.03, 0.005),
            (0.03, 0.02),
            (0.05, 0.005),
            (0.05, 0.02),
            (0.05, 0.05),
            (0.10, 0.02),
            (0.10, 0.05),
            (0.20, 0.20),
        )
    ),
    *(
        Case(name=f"loss {g:.0%}, noise {s:.1%}", gain=-g, sigma=s)
        for g, s in ((0.01, 0.02), (0.03, 0.02), (0.03, 0.05), (0.05, 0.20))
    ),
    Case(name="loss 3%, noise 5.0%, selected", gain=-0.03, sigma=0.05, selected=True),
    Case(name="gain 10%, 12 messages of noise 5.0%", gain=0.10, messages=12, message_sigma=0.05),
    Case(name="gain 10%, 12 messages of noise 10.0%", gain=0.10, messages=12, message_sigma=0.10),
    Case(name="gain 10%, one of 12 loses 8%", gain=0.10, messages=12, message_sigma=0.02, first_gain=-0.08),
    Case(name="gain 10%, one of 12 loses 1%", gain=0.10, messages=12, message_sigma=0.02, first_gain=-0.01),
    Case(name="gain 10%, one of 3 loses 5%", gain=0.10, messages=3, message_sigma=0.02, first_gain=-0.05),
    Case(name="gain 10%, wrong data in launch 7", gain=0.10, wrong_from=6),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What came of all studies of a case."""

    case: str
    k: int
    studies: int
    tuned_rate: float
    tuned_low: float
    tuned_high: float
    keep_default_rate: float
    undecided_rate: float
    coverage: float
    harm_rate: float
    launches_mean: float
    launches_p95: int | None
    best_of_n_rate: float
    blocks_mean: float
    blocks_p95: int | None


class Launches:
    """A runner that draws its times; it also counts, so that time can drift."""

    name = "bench"
    simulated = True
    cluster = CLUSTER

    def __init__(self, case: Case, gain: float, *, longest: int, seed: int) -> None:
        self._case = case
        self._gain = gain
        self._longest = longest
        self._random = random.Random(seed)
        self._number = 0
        self._phase = self._random.randrange(27720)  # a multiple of every period
        self._policy = 0
        self._noise = 0.0

    def applies(self, policy: Policy) -> bool:  # noqa: ARG002
        """Return whether one launch measures a whole policy."""
        return self._case.k == 1

    def measure_policy(self, policy: Policy, messages: Sequence[Message], *, repeat: int) -> TrialResult:
        """Draw one launch of the policy."""
        return self.measure(next(iter(policy.by_setting(messages).keys() - {DEFAULT})), messages, repeat=repeat)

    def measure(self, setting: Setting, messages: Sequence[Message], *, repeat: int) -> TrialResult:
        """Draw one launch."""
        case, draw = self._case, self._random
        factor = self.factor(quiet=case.alone and not setting.is_default)
        if not setting.is_default:
            self._policy += 1
            if case.wrong_from is not None and self._policy > case.wrong_from:
                return TrialResult(outcome=Outcome.WRONG_RESULT, detail=f"wrong data in repeat {repeat}")
        measured = []
        for message in messages:
            gain = 0.0 if setting.is_default else case.gain_of(message, self._gain)
            time_us = 1000.0 * factor / (1.0 + gain)
            if case.message_sigma:
                time_us *= math.exp(draw.gauss(0.0, case.message_sigma))
            measured.append(Measurement(message=message, samples_us=(time_us,)))
        return TrialResult(outcome=Outcome.OK, measurements=tuple(measured))

    def factor(self, *, quiet: bool = False) -> float:
        """Return noise and drift of the next launch as a factor; a quiet one has the median of `_bimodal` alone."""
        case, draw = self._case, self._random
        if case.noise is not None:
            self._noise = math.log(1.2) + draw.gauss(0.0, 0.01) if quiet else case.noise(draw)
        else:
            fresh = draw.gauss(0.0, case.sigma)
            self._noise = case.memory * self._noise + math.sqrt(1 - case.memory**2) * fresh
        drift = 1.0 + case.drift(self._number / self._longest)
        rhythm = case.rhythm(self._number + self._phase)
        self._number += 1
        return math.exp(self._noise + rhythm) * drift * (OUTLIER if draw.random() < case.outliers else 1.0)


def best_of(case: Case, *, trials: int, seed: int) -> tuple[bool, float]:
    """Play the usual practice: whether it claims a gain, and the true gain of the setting that it picks.

    In a case with a gain one setting has it and the others are like the default; a loss is that of all.
    """
    launches = Launches(case, case.gain, longest=trials + 1, seed=seed)
    default = launches.factor()
    gains = [case.gain if case.gain < 0 or number == 0 else 0.0 for number in range(trials)]
    times = [launches.factor() / (1.0 + gain) for gain in gains]
    fastest = min(range(trials), key=times.__getitem__)
    return default / times[fastest] >= 1.0 + MIN_EFFECT, gains[fastest]


def run_case(case: Case, *, studies: int, blocks: int, trials: int, seed: int) -> Row:
    """Play all studies of a case."""
    workload = Workload(
        name="bench",
        messages=tuple(
            MessageCalls(
                message=Message(
                    collective=Collective.ALL_REDUCE, dtype="float32", size_bytes=1 << (16 + number), group_size=8
                ),
                calls_per_step=1.0,
            )
            for number in range(max(case.messages, case.k))
        ),
        provenance=Provenance(source="bench"),
    )
    policy = Policy(
        rules=tuple(
            Rule(
                collective=Collective.ALL_REDUCE,
                min_bytes=1 << (16 + number),
                max_bytes=(1 << (17 + number)) - 1,
                algorithm=algorithm,
                protocol=protocol,
            )
            for number in range(case.rules or max(case.messages, case.k))
            for algorithm, protocol in (SETTINGS[number % case.k],)
        )
    )
    variables_policy = Policy(
        rules=(Rule(collective=Collective.ALL_REDUCE, algorithm=Algorithm.RING, protocol=Protocol.LL),)
    )
    variables = {Arm.VARIABLES: variables_policy} if case.three else {}
    decisions, lengths, launches, covered, claims, harmed = [], [], [], 0, 0, 0
    for number in range(studies):
        claimed, picked = best_of(case, trials=trials, seed=seed + 2 * number)
        claims += claimed
        gain = picked if case.selected else case.gain
        gains = {calls.message: case.gain_of(calls.message, gain) for calls in workload.messages}
        runner, trial_log = Launches(case, gain, longest=4 * blocks, seed=seed + 2 * number + 1), FakeTrialLog()
        Proof(
            runner=runner,
            workload=workload,
            trial_log=trial_log,
            policies={Arm.DEFAULT: Policy(), Arm.TABLE: policy} | variables,
            blocks=blocks,
            seed=str(seed + number),
            interrupted=lambda: "",
            watch=lambda *_: None,
        ).run()
        policy_verdict = build_policy_verdict(Arm.TABLE, policy, trial_log.trials(), workload, min_effect=MIN_EFFECT)
        verdict = policy_verdict.verdict
        decisions.append(verdict.decision)
        lengths.append(verdict.blocks)
        launches.append(len(trial_log.trials()))
        total = sum(1.0 / (1.0 + own) for own in gains.values())
        covered += verdict.interval[0] <= len(gains) / total <= verdict.interval[1]
        harmed += any(
            own < -MAX_MESSAGE_LOSS and not policy_verdict.effective.setting_for(message).is_default
            for message, own in gains.items()
        )
    return Row(
        case=case.name,
        k=case.k,
        studies=studies,
        tuned_rate=(tuned := decisions.count(Decision.TUNED)) / studies,
        tuned_low=wilson(tuned, studies)[0],
        tuned_high=wilson(tuned, studies)[1],
        keep_default_rate=decisions.count(Decision.KEEP_DEFAULT) / studies,
        undecided_rate=decisions.count(Decision.UNDECIDED) / studies,
        coverage=covered / studies,
        harm_rate=harmed / studies,
        launches_mean=statistics.fmean(launches),
        launches_p95=percentile_95(launches),
        best_of_n_rate=claims / studies,
        blocks_mean=statistics.fmean(lengths),
        blocks_p95=percentile_95(lengths),
    )


def wilson(count: int, of: int) -> tuple[float, float]:
    """Return the 95 % score interval of a share (Wilson, 1927)."""
    z = 1.96
    centre, half = count / of + z * z / (2 * of), z * math.sqrt(count * (of - count) / of**3 + z * z / (4 * of * of))
    return (centre - half) / (1 + z * z / of), (centre + half) / (1 + z * z / of)


def main(argv: Sequence[str]) -> int:
    """Print the table, or one JSON document."""
    parser = build_parser(__doc__)
    parser.add_argument("--studies", type=int, default=1000, help="studies of each case (default 1000)")
    parser.add_argument("--quick", action="store_true", help="100 studies of each case")
    parser.add_argument("--case", help="only cases whose name fits this pattern with *")
    parser.add_argument("--blocks", type=int, default=MAX_BLOCKS, help=f"at most (default {MAX_BLOCKS})")
    parser.add_argument("--trials", type=int, default=40, help="N of the best of N (default 40)")
    parser.add_argument("--seed", type=int, default=0, help="the same seed gives the same table")
    options = parser.parse_args(argv)
    studies = 100 if options.quick else options.studies
    if min(studies, options.blocks, options.trials) < 1:
        parser.error("--studies, --blocks and --trials must be at least 1")
    cases = [case for case in CASES if fnmatch.fnmatch(case.name, options.case or "*")]
    if not GRID.is_file() and any(case.noise is _disturbed for case in cases):
        print(f"left out for lack of {GRID.name}: the cases with recorded noise", file=sys.stderr)
        cases = [case for case in cases if case.noise is not _disturbed]
    if not cases:
        parser.error(f"no case fits {options.case!r}; there are: {', '.join(case.name for case in CASES)}")
    started = time.monotonic()
    rows = Rows(as_json=options.json)
    for case in cases:
        # Every case has launches of its own, whichever others are asked for.
        seed = options.seed + 1_000_003 * CASES.index(case)
        rows.add(run_case(case, studies=studies, blocks=options.blocks, trials=options.trials, seed=seed))
    seconds = time.monotonic() - started
    rows.end(f"\n{studies} studies of each case, {seconds:.0f} s", seconds=round(seconds, 1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
