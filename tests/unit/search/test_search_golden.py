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
from ncclt.core.setting import Setting
from ncclt.search.acquisition import Beliefs, default_gain, launch_gains, standing
from ncclt.search.kernels import choices, implausibility, likeness
from ncclt.search.prior import expected_log_ratios, expected_own
from ncclt.search.process_wide import outlook

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
        (Collective.ALL_REDUCE, 4096, 4), (Collective.ALL_REDUCE, 1 << 20, 2), (Collective.ALL_GATHER, 64 << 20, 4)
    )
]  # fmt: skip


def some_beliefs():
    """Settings of three groups: measured and not, of pairs never tried, and what NCCL would do by itself."""
    draw = np.random.default_rng(3)
    shape = (len(SETTINGS), len(MESSAGES))
    number = np.arange(shape[0])
    return Beliefs(
        mean=0.2 * draw.standard_normal(shape) - 0.05,
        variance=draw.uniform(0.001, 0.04, shape),
        measured=number % 3 == 0,
        reaches=draw.uniform(size=shape) > 0.15,
        untried=(number % 3 == 1) & (number < 8),
        own=draw.uniform(size=shape) > 0.8,
        disturbed=np.where(draw.uniform(size=shape) > 0.9, 0.7, 0.0),
        noise=0.08**2,
        noises=((1.0, 0.08**2),),
        default_launches=3,
        weights=np.array([0.5, 0.3, 0.2]),
    )


def figures(cluster):
    """Return all figures by name."""
    alike, known = likeness(SETTINGS, MESSAGES, cluster), some_beliefs()
    kernels = alike.kernels(*choices()[-1])
    seen = outlook(SETTINGS, known)
    found = {
        "choices": choices(),
        "implausibility": [implausibility(choice) for choice in choices()],
        **{f"likeness {name}": getattr(alike, name) for name in
           ("smooth", "rough", "parameters", "size_doublings", "kinds")},
        **{f"kernels {name}": getattr(kernels, name) for name in ("smooth", "rough", "sizes", "prior")},
        "expected log ratios": expected_log_ratios(SETTINGS, MESSAGES, cluster),
        "expected own": expected_own(SETTINGS, MESSAGES, cluster).astype(int),
        "launch gains": launch_gains(known, standing(known)),
        "default gain": default_gain(known, standing(known)),
        "outlook gains": seen.gains,
        "outlook of the default and share": [seen.default, seen.share],
    }  # fmt: skip
    return {name: np.asarray(values, dtype=float) for name, values in found.items()}


def test_every_figure_is_the_recorded_one(cluster):
    found = figures(cluster)
    if os.environ.get("NCCLT_UPDATE_GOLDEN"):
        rounded = {name: np.vectorize(lambda x: float(f"{x:.9g}"))(values).tolist() for name, values in found.items()}
        GOLDEN.write_text("{\n" + ",\n".join(f'"{n}": {json.dumps(v)}' for n, v in rounded.items()) + "\n}\n")
    recorded = json.loads(GOLDEN.read_text())

    assert found.keys() == recorded.keys()
    assert [name for name in found if found[name] != pytest.approx(np.array(recorded[name]), rel=1e-6, abs=1e-12)] == []
