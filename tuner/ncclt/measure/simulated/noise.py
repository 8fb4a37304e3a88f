"""Seeded noise and faults: the same launch of the same setting always has the same times and end, in any order.

Magnitudes, as seen on real clusters: lognormal with sigma 0.5-3 % within a node and 5-20 % over TCP, rare outliers of
2-10 times at scale, and a cold first repeat.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

from ncclt.core.cluster import Cluster
from ncclt.core.message import Message
from ncclt.core.setting import Setting
from ncclt.core.trial import Outcome
from ncclt.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """Variation of the samples.

    Attributes:
        seed: of everything random.
        sigma: of the logarithm of one sample; half of it is the variation between launches.
        outlier_rate: probability that a sample is 2 to 10 times too long.
        cold: largest relative excess of the first sample of the first launch of a setting.
    """

    seed: int
    sigma: float
    outlier_rate: float
    cold: float = 0.4

    def samples_us(
        self, expected_us: float, setting_digest: str, message: Message, *, repeat: int, count: int
    ) -> tuple[float, ...]:
        """Return `count` noisy samples of an expected time, µs."""
        launch = _launch(self.seed, setting_digest, repeat) * self.sigma / 2
        group = f"{message.group_size}/{message.spans_nodes}"
        what = f"{message.collective}/{message.dtype}/{message.size_bytes}/{group}"
        samples: list[float] = []
        while len(samples) < count:
            # The bytes of one hash are the draws of a handful of samples: a generator of its own would cost more.
            draws = _DRAWS.unpack(_hash(self.seed, setting_digest, repeat, what, len(samples), size=64))
            normals, outliers, (size, cold) = draws[:_HANDFUL], draws[_HANDFUL:-2], draws[-2:]
            for normal, outlier in zip(normals, outliers, strict=True):
                factor = math.exp(launch + self.sigma * _NORMAL(((normal >> 12) + 0.5) / 2**52)) if self.sigma else 1.0
                if outlier < self.outlier_rate * 2**16:
                    factor *= 2.0 + 8.0 * ((size ^ normal) & 0xFFFF) / 2**16
                if repeat == 0 and not samples:
                    factor *= 1 + self.cold * cold / 2**32
                samples.append(expected_us * factor)
        return tuple(samples[:count])


_HANDFUL = 5
_DRAWS = struct.Struct(f"<{_HANDFUL}Q{_HANDFUL}HHI8x")
_NORMAL = NormalDist().inv_cdf


def _hash(*what: object, size: int) -> bytes:
    return hashlib.blake2b("|".join(map(str, what)).encode(), digest_size=size).digest()


@lru_cache(maxsize=256)
def _launch(seed: int, setting_digest: str, repeat: int) -> float:
    """Return the deviation of a launch as a whole in standard deviations; the same for all its messages."""
    drawn = int.from_bytes(_hash(seed, setting_digest, repeat, "launch", size=6), "big")
    return _NORMAL((drawn + 0.5) / 2**48)


def build_noise(cluster: Cluster, *, seed: int, sigma: float | None) -> Noise:
    """Return the noise of a cluster; `sigma` replaces the usual one, 0 = no noise."""
    if sigma == 0:
        return Noise(seed=seed, sigma=0.0, outlier_rate=0.0, cold=0.0)
    usual = 0.01
    if cluster.nodes > 1:
        usual = {"ethernet": 0.08, "efa": 0.03, "slingshot": 0.025}.get(cluster.fabric, 0.02)
    elif cluster.link_class in ("pcie", "shm"):
        usual = 0.015
    return Noise(
        seed=seed,
        sigma=usual if sigma is None else sigma,
        outlier_rate=0.002 if cluster.nodes == 1 else 0.005,
    )


def uniform(seed: int, setting: Setting, repeat: int, what: str) -> float:
    """Return a number in [0, 1) that depends only on the arguments, for seeded faults."""
    return int.from_bytes(_hash(seed, setting.digest(), repeat, what, size=7), "big") / 2**56


Predicate = Callable[[Setting], bool]
"""Returns whether a setting always fails."""

DETAIL = {
    Outcome.CRASHED: (
        "node1:4242:4242 [0] NCCL WARN Cuda failure 'an illegal memory access was encountered'\n"
        "Test NCCL failure: unhandled cuda error (run with NCCL_DEBUG=INFO for details)"
    ),
    Outcome.TIMEOUT: (
        "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=17, OpType=ALLREDUCE) ran for longer than the "
        "limit; the processes were killed"
    ),
    Outcome.WRONG_RESULT: "# Out of bounds values : 1024 FAILED",
}
"""Last lines of output of each fault (forms as printed by NCCL, torch and nccl-tests)."""


def _never(_setting: Setting) -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Simulated faults: the launches that fail, and their outcomes.

    Attributes:
        crash, hang, wrong: probability of that outcome of a launch, 0 to 1; drawn from the seed.
        crash_if, hang_if, wrong_if: settings that always have it.
    """

    crash: float = 0.0
    hang: float = 0.0
    wrong: float = 0.0
    crash_if: Predicate = _never
    hang_if: Predicate = _never
    wrong_if: Predicate = _never

    def __post_init__(self) -> None:
        if any(not 0 <= p <= 1 for p in (self.crash, self.hang, self.wrong)):
            raise UsageError("the probability of a fault must be 0 to 1", hint="0 = never, 1 = every launch")

    def outcome(self, setting: Setting, *, seed: int, repeat: int) -> Outcome:
        """Return the outcome of a launch: `ok`, or the first fault that occurs."""
        for outcome, rate, always in (
            (Outcome.CRASHED, self.crash, self.crash_if),
            (Outcome.TIMEOUT, self.hang, self.hang_if),
            (Outcome.WRONG_RESULT, self.wrong, self.wrong_if),
        ):
            if always(setting) or (rate and uniform(seed, setting, repeat, outcome) < rate):
                return outcome
        return Outcome.OK


NO_FAULTS = Faults()
"""Every launch succeeds."""
