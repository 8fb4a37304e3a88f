"""The figures that the search goes by, one by one: nothing in them changes unnoticed.

They were set by comparing searches (adr/0007), and a slip in one of them only makes every search a little worse, which
no other test would show. After a wanted change run bench/search.py, then this once with NCCLT_UPDATE_GOLDEN=1.
"""

import itertools
import json
import os
from pathlib import Path

import numpy as np
import pytest

from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.message import Collective, Message
from ncclt.core.setting import DEFAULT, Setting
from ncclt.core.workload import MessageCalls, Provenance, Workload
from ncclt.search.acquisition import Posterior, estimate_gains, estimate_launch_gains, find_incumbent
from ncclt.search.observations import Launch, observe
from ncclt.search.posterior import Model, build_kernel, hyperparameter_grid, neg_log_prior
from ncclt.search.prior import expected_log_ratios, match_expected_default
from ncclt.search.sampler import Sampler, _estimate_run_chance
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


def some_posterior():
    """Settings that were measured and that were not, and what NCCL would do by itself."""
    draw = np.random.default_rng(3)
    shape = (len(SETTINGS), len(MESSAGES))
    number = np.arange(shape[0])
    return Posterior(
        mean=0.2 * draw.standard_normal(shape) - 0.05,
        variance=draw.uniform(0.001, 0.04, shape),
        measured=number % 3 == 0,
        reaches=draw.uniform(size=shape) > 0.15,
        own=draw.uniform(size=shape) > 0.8,
        noise=0.08**2,
        weights=np.array([0.5, 0.3, 0.2]),
    )


def some_launches():
    """Of the default, of some settings once, one of them disturbed and one failed, and of one setting twice."""
    draw = np.random.default_rng(5)
    settings = [DEFAULT, *SETTINGS[:6], SETTINGS[9], SETTINGS[1]]
    times = np.array([30.0, 90.0, 900.0]) * np.exp(0.03 * draw.standard_normal((len(settings), 3)))
    times[3] *= 40
    made = [Launch(setting=s, times_us=tuple(us)) for s, us in zip(settings, times.tolist(), strict=True)]
    return [*made, Launch(setting=SETTINGS[6], times_us=None)]


def of_the_model(cluster):
    """Posterior after some launches, while another one runs."""
    observed = observe(some_launches())
    known = Model(SETTINGS, WORKLOAD, cluster).compute_posterior(observed, [SETTINGS[7]])
    before = Model(SETTINGS, WORKLOAD, cluster).compute_posterior(observe(some_launches()[:1]), ())
    many = [Setting(algorithm=a, protocol=p, channels=c) for (a, p), c in itertools.product(PAIRS, range(1, 21))]
    times = 100 * np.exp(0.1 * np.random.default_rng(6).standard_normal((len(many) + 1, len(MESSAGES))))
    launches = [Launch(setting=s, times_us=tuple(us)) for s, us in zip([DEFAULT, *many], times.tolist(), strict=True)]
    later = Model(many, WORKLOAD, cluster).compute_posterior(observe(launches), ())
    return {
        **{f"posterior {name}": getattr(known, name) for name in ("mean", "variance", "weights")},
        "weights of the mixture": [weight for weight, _, _ in known.mixture],
        "chances to run": _estimate_run_chance(SETTINGS, observed),
        "posterior before all launches": np.array([before.mean, before.variance]),
        "posterior after many launches": later.mean[:3],
    }


def figures(cluster):
    """Return all figures by name."""
    kernel, known = build_kernel(SETTINGS, MESSAGES, cluster), some_posterior()
    covariance = kernel.covariance(*hyperparameter_grid()[-1])
    seen = estimate_gains(SETTINGS, known)
    found = {
        **of_the_model(cluster),
        "choices": hyperparameter_grid(),
        "neg_log_prior": [neg_log_prior(choice) for choice in hyperparameter_grid()],
        **{
            f"kernel {name}": getattr(kernel, name)
            for name in ("smooth", "rough", "parameters", "size_doublings", "kinds")
        },
        **{f"covariance {name}": getattr(covariance, name) for name in ("smooth", "rough", "sizes", "prior")},
        "expected log ratios": expected_log_ratios(SETTINGS, MESSAGES, cluster),
        "expected own": match_expected_default(SETTINGS, MESSAGES, cluster).astype(int),
        "launch gains": estimate_launch_gains(known, find_incumbent(known)),
        "candidate gains": seen.gains,
        "candidate share": [seen.share],
    }
    return {name: np.asarray(values, dtype=float) for name, values in found.items()}


def test_every_figure_is_the_recorded_one(cluster):
    found = figures(cluster)
    if os.environ.get("NCCLT_UPDATE_GOLDEN"):
        rounded = {name: np.vectorize(lambda x: float(f"{x:.9g}"))(values).tolist() for name, values in found.items()}
        GOLDEN.write_text("{\n" + ",\n".join(f'"{n}": {json.dumps(v)}' for n, v in rounded.items()) + "\n}\n")
    recorded = json.loads(GOLDEN.read_text())

    assert found.keys() == recorded.keys()
    assert [name for name in found if found[name] != pytest.approx(np.array(recorded[name]), rel=1e-6, abs=1e-12)] == []


def test_what_is_compared_is_rounded_so_that_every_machine_chooses_kernel(cluster):
    """The last bits of linear algebra differ between machines, and must propose nothing."""
    known = of_the_model(cluster)
    decided = Sampler(recorded_space(SETTINGS), WORKLOAD, cluster).propose(some_launches()[:-1])
    for values, digits in (
        (known["posterior mean"], 8),
        (known["posterior variance"], 16),
        (decided.expected_gain, 9),
    ):
        assert (np.round(values, digits) == values).all()
        assert (np.round(values, digits - 1) != values).any(), "no digit of it is wasted"
