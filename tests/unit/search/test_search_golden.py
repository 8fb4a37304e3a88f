"""The figures that the search goes by, one by one: nothing in them changes unnoticed.

They were set by comparing searches (adr/0007), and a slip in one of them only makes every search a little worse, which
no other test would show. After a wanted change run bench/search.py, then this once with NCCLT_UPDATE_GOLDEN=1.
"""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.message import Collective, Message
from ncclt.core.setting import DEFAULT, Setting
from ncclt.core.study import Phase, Trial
from ncclt.core.trial import Measurement, Outcome, TrialResult
from ncclt.core.workload import MessageCalls, Provenance, Workload
from ncclt.search.assemble import collect_times
from ncclt.search.gaussian_process import GaussianProcess, build_covariance
from ncclt.search.prior import expected_log_ratios, match_expected_default
from ncclt.search.sampler import GaussianProcessSampler, _estimate_run_chances
from ncclt.search.space import recorded_space

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "search.json"
PAIRS = [(Algorithm.RING, Protocol.LL), (Algorithm.RING, Protocol.SIMPLE), (Algorithm.TREE, Protocol.LL)]
SMALL, LARGE = (("BUFFSIZE", 1 << 20),), (("BUFFSIZE", 16 << 20), ("NTHREADS", 128))
SETTINGS = [
    *(Setting(algorithm=a, protocol=p, channels=c) for a, p in PAIRS for c in (None, 2, 24)),
    Setting(algorithm=Algorithm.RING, protocol=Protocol.LL, parameters=SMALL),
    Setting(algorithm=Algorithm.TREE, protocol=Protocol.LL, channels=8, parameters=LARGE),
    Setting(parameters=LARGE),
]
MESSAGES = [
    Message(collective=collective, dtype="float32", size_bytes=size, group_size=group)
    for collective, size, group in (
        (Collective.ALL_REDUCE, 4096, 4),
        (Collective.ALL_REDUCE, 1 << 20, 2),
        (Collective.ALL_GATHER, 64 << 20, 4),
    )
]
WORKLOAD = Workload(
    name="w",
    messages=tuple(
        MessageCalls(message=message, calls_per_step=calls)
        for message, calls in zip(MESSAGES, (10.0, 2.0, 1.0), strict=True)
    ),
    provenance=Provenance(source="test"),
)


def some_trials():
    """Of the default, of some settings once, one of them disturbed and one failed, and of one setting twice."""
    draw = np.random.default_rng(5)
    settings = [DEFAULT, *SETTINGS[:6], SETTINGS[9], SETTINGS[1]]
    times = np.array([30.0, 90.0, 900.0]) * np.exp(0.03 * draw.standard_normal((len(settings), 3)))
    times[3] *= 40
    return [
        Trial(
            number=number,
            phase=Phase.SEARCH,
            setting=setting,
            repeat=0,
            result=TrialResult(
                outcome=Outcome.OK if us else Outcome.CRASHED,
                measurements=tuple(Measurement(message=m, samples_us=(t,)) for m, t in zip(MESSAGES, us, strict=False)),
            ),
            score_us=sum(us) if us else None,
        )
        for number, (setting, us) in enumerate([*zip(settings, times.tolist(), strict=True), (SETTINGS[6], [])])
    ]


def figures(cluster):
    """Return all figures by name."""
    trials = some_trials()
    times = collect_times(trials)
    mean, variance = GaussianProcess(SETTINGS, WORKLOAD, cluster).predict(times, running=[SETTINGS[7]])
    sampler = GaussianProcessSampler(recorded_space(SETTINGS), WORKLOAD, cluster)
    proposals = [sampler.propose(collect_times(trials[:count]), trials[:count]) for count in range(1, len(trials))]
    found = {
        "covariance": build_covariance(SETTINGS, channels=16),
        "mean": mean,
        "variance": variance,
        "expected log ratios": expected_log_ratios(SETTINGS, MESSAGES, cluster),
        "expected own": match_expected_default(SETTINGS, MESSAGES, cluster).astype(int),
        "chances to run": _estimate_run_chances(SETTINGS, trials),
        "proposed": [SETTINGS.index(proposal.setting) for proposal in proposals],
        "expected gains": [proposal.expected_gain for proposal in proposals],
    }
    return {name: np.asarray(values, dtype=float) for name, values in found.items()}


def test_every_figure_is_the_recorded_one(cluster):
    found = figures(cluster)
    if os.environ.get("NCCLT_UPDATE_GOLDEN"):
        rounded = {name: np.vectorize(lambda x: float(f"{x:.9g}"))(values).tolist() for name, values in found.items()}
        GOLDEN.write_text("{\n" + ",\n".join(f'"{n}": {json.dumps(v)}' for n, v in rounded.items()) + "\n}\n")
    recorded = json.loads(GOLDEN.read_text())

    assert found.keys() == recorded.keys()
    assert [name for name in found if found[name] != pytest.approx(np.array(recorded[name]), rel=1e-6, abs=1e-9)] == []


def test_gains_are_rounded_so_that_every_machine_chooses_alike(cluster):
    """The last bits of linear algebra differ between machines, and must propose nothing."""
    gains = figures(cluster)["expected gains"]

    assert (np.round(gains, 9) == gains).all()
    assert (np.round(gains, 8) != gains).any(), "no digit of it is wasted"
