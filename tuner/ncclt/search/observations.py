"""The launches of a study as the table that the Gaussian process is fitted to."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ncclt.core.setting import DEFAULT, Setting
from ncclt.core.study import Trial
from ncclt.core.trial import Outcome
from ncclt.core.workload import Workload
from ncclt.search.gaussian_process import Array
from ncclt.search.noise import launch_sigma, typical_us

_HOPELESS = 0.5
"""Log ratio from which losses are compressed: the model's accuracy is needed where the gains are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One launch, as the sampler sees it.

    Attributes:
        setting: what was forced.
        times_us: time of each message in the order of the workload; None = the launch failed.
        wrong: it failed by wrong data.
    """

    setting: Setting
    times_us: tuple[float, ...] | None
    wrong: bool = False


def collect_launches(trials: Iterable[Trial], workload: Workload) -> tuple[Launch, ...]:
    """Return the launches of a study that measured one setting, in order."""
    launches = []
    for trial in trials:
        if trial.policy is not None:
            continue
        times = {m.message: m.time_us for m in trial.result.measurements}
        fine = trial.result.outcome is Outcome.OK and all(c.message in times for c in workload.messages)
        if not fine and trial.result.outcome is Outcome.OK:
            continue
        launches.append(
            Launch(
                setting=trial.setting,
                times_us=tuple(times[c.message] for c in workload.messages) if fine else None,
                wrong=trial.result.outcome is Outcome.WRONG_RESULT,
            )
        )
    return tuple(launches)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observations:
    """All launches of a study, by setting.

    Attributes:
        default_us: typical time of each message under the default, µs.
        ratios: setting -> ln(time / time of the default) of each message; settings that a policy may take.
        launches: setting -> its successful launches, the default's included.
        failures: setting -> its failed launches.
        sigma: standard deviation of the logarithm of a time between launches.
    """

    default_us: Array
    ratios: Mapping[Setting, Array]
    launches: Mapping[Setting, int]
    failures: Mapping[Setting, int]
    sigma: float


def observe(launches: Sequence[Launch]) -> Observations:
    """Gather launches by setting; a successful one of the default must be among them.

    Failures count as they do for the policy (`search.assemble.collect_times`): wrong data rules a setting out for
    good, any other failure until it has succeeded more often than it failed.
    """
    times: dict[Setting, list[tuple[float, ...]]] = {}
    failures: dict[Setting, int] = {}
    wrong = {launch.setting for launch in launches if launch.wrong}
    for launch in launches:
        if launch.times_us is None:
            failures[launch.setting] = failures.get(launch.setting, 0) + 1
        else:
            times.setdefault(launch.setting, []).append(launch.times_us)
    by_message = {setting: list(zip(*rows, strict=True)) for setting, rows in times.items()}
    repeated = [column for columns in by_message.values() for column in columns]
    sigma = launch_sigma(repeated)
    typical = {
        setting: np.array([math.log(typical_us(column, sigma)) for column in columns])
        for setting, columns in by_message.items()
    }
    default = typical[DEFAULT]
    return Observations(
        default_us=np.exp(default),
        ratios={
            s: y - default
            for s, y in typical.items()
            if not s.is_default and s not in wrong and failures.get(s, 0) < len(times[s])
        },
        launches={setting: len(rows) for setting, rows in times.items()},
        failures=failures,
        sigma=sigma,
    )


def compress_losses(ratios: Array) -> Array:
    """Return log ratios with those of slower settings compressed; gains stay as they are.

    A landscape spans factors of 100 where it is hopeless and a few per cent where it matters. On one scale for both
    the model would not see the latter.
    """
    return np.where(ratios > 0, _HOPELESS * np.log1p(np.maximum(ratios, 0.0) / _HOPELESS), ratios)


def expand_losses(values: Array) -> Array:
    """Return the log ratios that `compress_losses` compressed."""
    return np.where(values > 0, _HOPELESS * np.expm1(np.maximum(values, 0.0) / _HOPELESS), values)
