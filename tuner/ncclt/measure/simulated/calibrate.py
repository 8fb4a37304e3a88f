"""Fits the free constants of the simulated hardware to times of a real cluster, by robust least squares.

Residuals are logarithms of predicted over measured time. A soft_l1 loss keeps outliers and what the mechanisms do not
describe from pulling the constants; a constant that the times say nothing about stays where it was.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ncclt.core.algorithms import Algorithm
from ncclt.core.calibration import Calibration, Constant
from ncclt.core.cluster import Cluster
from ncclt.core.message import Collective, Message
from ncclt.core.setting import Setting
from ncclt.errors import UsageError
from ncclt.measure.simulated.link_model import BETWEEN, WITHIN, LinkModel, build_link_model, scale_links
from ncclt.measure.simulated.transfer_time import SimulatedKernel, kernel_us, select_kernel

_SIGMA = 0.08
"""Relative error beyond which a point counts as an outlier: noise of a cluster and what the mechanisms leave out."""

_MISFIT = 0.25
"""Model error on a fitted system: standard deviation of the logarithm of a time."""

_ALIKE = (3.0, 2.0)
"""Doublings of size and of channels over which that stays alike."""

_STEP = 1e-4
_NAMES = (*WITHIN, *BETWEEN)
_PRIOR = np.array([*WITHIN.values(), *BETWEEN.values()])
_FEWEST = 4
_OWN_CHANNELS = (0.5, 1.0, 2.0)
"""Factors tried on the channels of the NCCL default, which no time shows directly."""

_REACHES_EVERYONE = (Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.BROADCAST)
_ROUNDED = 1.1
"""Max factor of a network over its described bandwidth, which is rounded."""

_EXTRA = _NAMES.index("extra")
_NO_EXTRA = -3.0
_USUAL = np.where(np.arange(len(_NAMES)) == _EXTRA, _NO_EXTRA, 0.0)
"""Logarithms without times; nothing beside the call (0.05 µs) is where `extra` starts."""

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedPoint:
    """One measured time: on how many nodes, what was forced, what was sent, µs."""

    nodes: int
    setting: Setting
    message: Message
    time_us: float


_Point = tuple[SimulatedKernel, LinkModel, tuple[int, ...]]
"""Kernel and links of a measured time, and the positions of the constants that can matter to it."""


def calibrate(cluster: Cluster, seen: Sequence[ObservedPoint], *, sources: Sequence[str] = ()) -> Calibration:
    """Fit the constants of a cluster to times that were measured there.

    Args:
        cluster: its description; an earlier calibration is not used.
        seen: times, of the default or of forced settings.

    Raises:
        UsageError: fewer than four times, or a message that does not fit on the cluster.
    """
    if len(seen) < _FEWEST:
        raise UsageError(
            f"{len(seen)} times are too few to calibrate {cluster.name}", hint=f"give {_FEWEST} sizes or more"
        )
    plain = replace(cluster, calibration=None)
    measured = np.log([one.time_us for one in seen])
    best: tuple[float, Calibration, _Fit] | None = None
    for candidate, start in _candidates(_blank(seen, sources), seen, float(measured.min()) - 1.0):
        best = _better(best, candidate, start, plain, seen, measured)
    assert best is not None
    for candidate in _tree_candidates(best[1], plain, seen):
        # What changes is a few of the default's points: the fit so far is near.
        best = _better(best, candidate, best[2].theta, plain, seen, measured)
    _, chosen, fit = best
    return replace(chosen, constants=fit.constants(), error=fit.error)


def require_possible(cluster: Cluster, one: ObservedPoint) -> None:
    """Refuse a time in which the ports of a node cannot receive the result, less what the node may have of it.

    Only where the ports are known: those of a recorded table are guessed.

    Raises:
        UsageError: the time is too short, so time or ports are not those of this cluster.
    """
    ports_gbps = cluster.nics_per_node * cluster.nic_gbps
    message = one.message
    if one.nodes < 2 or not ports_gbps or message.group_size or message.collective not in _REACHES_EVERYONE:
        return
    arriving = message.size_bytes * (1 - 1 / one.nodes)
    if one.time_us * ports_gbps * 1e3 * _ROUNDED < arriving:
        raise UsageError(
            f"{message.label} on {one.nodes} nodes of {cluster.name} took {one.time_us:.4g} µs, and its ports "
            f"({cluster.nics_per_node} x {cluster.nic_gbps:g} GB/s) need {arriving / ports_gbps / 1e3:.4g} µs or more",
            hint="check that these are times of this cluster, and its nics_per_node and nic_gbps",
        )


def _candidates(
    blank: Calibration, seen: Sequence[ObservedPoint], most_of_the_time: float
) -> Iterator[tuple[Calibration, Array]]:
    """Yield the candidates for the NCCL default, each with the initial constants."""
    # From nothing beside the call, and from most of the time: the slope of the one does not show the other.
    yield blank, _USUAL
    yield blank, np.where(np.arange(len(_NAMES)) == _EXTRA, most_of_the_time, _USUAL)
    if any(one.setting.is_default for one in seen):
        for ll128 in (None, True, False):
            for channels in _OWN_CHANNELS:
                if (ll128, channels) != (None, 1.0):
                    yield replace(blank, ll128=ll128, channels=channels), _USUAL


def _tree_candidates(found: Calibration, plain: Cluster, seen: Sequence[ObservedPoint]) -> list[Calibration]:
    """Return the calibrations whose own choice leaves the tree earlier; only forced times tell it from a fast tree."""
    if not found.probed:
        return []
    here = replace(plain, calibration=found)
    sizes = {
        one.message.size_bytes
        for one in seen
        if one.setting.is_default and select_kernel(here, one.setting, one.message).algorithm is Algorithm.TREE
    }
    return [replace(found, tree_bytes=limit) for limit in (0, *sorted(sizes)[:-1])] if sizes else []


def _better(
    best: tuple[float, Calibration, _Fit] | None,
    candidate: Calibration,
    start: Array,
    plain: Cluster,
    seen: Sequence[ObservedPoint],
    measured: Array,
) -> tuple[float, Calibration, _Fit]:
    """Return the better of the best fit so far and that of a candidate."""
    fit = _fit([_point(replace(plain, calibration=candidate), one) for one in seen], measured, start)
    # A switch must explain more than chance: each costs one unit of the loss.
    switches = (candidate.ll128 is not None) + (candidate.channels != 1.0) + (candidate.tree_bytes is not None)
    cost = fit.cost + switches
    return (cost, candidate, fit) if best is None or cost < best[0] else best


def _blank(seen: Sequence[ObservedPoint], sources: Sequence[str]) -> Calibration:
    """Return the calibration of some times, without the constants."""
    return Calibration(
        constants=(),
        probed=len({one.setting for one in seen}) > 1,
        points=len(seen),
        error=0.0,
        least_bytes=min(o.message.size_bytes for o in seen),
        most_bytes=max(o.message.size_bytes for o in seen),
        least_nodes=min(o.nodes for o in seen),
        most_nodes=max(o.nodes for o in seen),
        sources=tuple(sources),
        most_channels=max((o.setting.channels or 0 for o in seen), default=0),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fit:
    cost: float
    theta: Array
    spread: Array
    error: float

    def constants(self) -> tuple[Constant, ...]:
        """Return the constants that the times moved or pinned down."""
        return tuple(
            Constant(
                name=name,
                factor=float(np.exp(value)),
                low=float(np.exp(value - 1.96 * spread)),
                high=float(np.exp(value + 1.96 * spread)),
            )
            for name, value, spread, prior, usual in zip(_NAMES, self.theta, self.spread, _PRIOR, _USUAL, strict=True)
            if spread < 0.9 * prior or abs(value - usual) > 0.01
        )


def _fit(points: Sequence[_Point], measured: Array, start: Array) -> _Fit:
    from scipy.optimize import least_squares

    def residuals(theta: Array) -> Any:
        return np.concatenate([(_predicted(points, theta) - measured) / _SIGMA, (theta - _USUAL) / _PRIOR])

    def slopes(theta: Array) -> Any:
        return np.vstack([jacobian(points, theta) / _SIGMA, np.diag(1 / _PRIOR)])

    found = least_squares(
        residuals, start, jac=slopes, loss="soft_l1", x_scale=_PRIOR, max_nfev=25, xtol=1e-3, ftol=1e-3
    )
    errors = np.abs(np.expm1(_predicted(points, found.x) - measured))
    # The Jacobian that scipy returns is scaled by the loss, so its information is that of the robust fit.
    excess = max(1.0, float(np.median(errors)) / (0.6745 * _SIGMA))
    spread = excess * np.sqrt(np.diag(np.linalg.pinv(found.jac.T @ found.jac)))
    return _Fit(cost=float(found.cost), theta=found.x, spread=spread, error=float(np.median(errors)))


def _point(cluster: Cluster, one: ObservedPoint) -> _Point:
    part = cluster.sized(nodes=one.nodes)
    links = build_link_model(replace(part, calibration=None), one.message.group_size, one.message.spans_nodes)
    kernel = select_kernel(part, one.setting, one.message)
    return kernel, links, _free(kernel, links)


def _free(kernel: SimulatedKernel, links: LinkModel) -> tuple[int, ...]:
    """Return the positions of the constants that can matter to a kernel: the others need no derivative."""
    nvls = kernel.algorithm in (Algorithm.NVLS, Algorithm.NVLS_TREE)
    # send_recv and all_to_all choose their protocol by size.
    endings = (kernel.protocol.value,) if kernel.collective.is_tunable else ("ll", "simple")
    found = []
    for position, name in enumerate(_NAMES):
        _, _, ending = name.partition(".")
        if name in BETWEEN and links.graph.nodes == 1:
            continue
        if ending == "tree":
            wanted = kernel.algorithm is Algorithm.TREE
        elif name == "chain":
            wanted = kernel.collective in (Collective.BROADCAST, Collective.REDUCE)
        elif name.startswith("nvls"):
            wanted = nvls
        else:
            wanted = not ending or ending in endings
        if wanted:
            found.append(position)
    return tuple(found)


def _times(points: Sequence[_Point], theta: Array) -> list[float]:
    factors = dict(zip(_NAMES, np.exp(theta).tolist(), strict=True))
    known: dict[int, LinkModel] = {}
    found = []
    for kernel, links, _ in points:
        scaled = known.get(id(links))
        if scaled is None:
            scaled = known[id(links)] = scale_links(links, factors)
        found.append(kernel_us(kernel, scaled))
    return found


def _predicted(points: Sequence[_Point], theta: Array) -> Array:
    return np.log(_times(points, theta))


def jacobian(points: Sequence[_Point], theta: Array) -> Array:
    """Return d ln(time) / d ln(constant), points x constants."""
    base = _predicted(points, theta)
    steps = np.full(len(_NAMES), _STEP)
    return (_moved(points, theta, steps) - base[:, None]) / _STEP


def _moved(points: Sequence[_Point], theta: Array, steps: Array) -> Array:
    """Return ln(time) with one constant moved at a time, points x constants."""
    found = np.repeat(_predicted(points, theta)[:, None], len(_NAMES), axis=1)
    for position, step in enumerate(steps):
        rows = [row for row, (_, _, free) in enumerate(points) if position in free]
        if rows:
            moved = theta.copy()
            moved[position] += step
            found[rows, position] = _predicted([points[row] for row in rows], moved)
    return found


def choose_probes(
    cluster: Cluster, seen: Sequence[ObservedPoint], candidates: Sequence[Sequence[ObservedPoint]], count: int
) -> list[int]:
    """Choose the launches that tell most about the times of all candidates: each the one that leaves least variance.

    A time is in doubt because constants are, and because the mechanisms leave something out. The second spreads the
    launches: without it they would repeat a few points to average noise away.

    Args:
        cluster: with the calibration to start from, if there is one.
        candidates: what each launch would measure; the times are not looked at.
        count: launches.

    Returns:
        Positions of the candidates, the most informative first.
    """
    most = max((one.setting.channels or 0 for launch in candidates for one in launch), default=0)
    start = cluster.calibration or _blank(seen or candidates[0], ())
    plain = replace(cluster, calibration=replace(start, constants=(), most_channels=most))
    factors = cluster.calibration.factors if cluster.calibration else {}
    theta = np.array(
        [math.log(factors[name]) if name in factors else u for name, u in zip(_NAMES, _USUAL, strict=True)]
    )
    known = [_point(plain, one) for one in seen]
    points = known + [_point(plain, one) for launch in candidates for one in launch]
    # By how much the times are in doubt: a constant that is small here, such as the proxy's, may not be small there.
    slopes = (_moved(points, theta, _PRIOR) - _moved(points, theta, -_PRIOR)) / 2
    covariance = (slopes @ slopes.T + _misfit(points)) / _SIGMA**2
    told = _told(covariance, range(len(known)))
    covariance = (covariance - told @ told.T)[len(known) :, len(known) :]
    starts = np.cumsum([0, *(len(launch) for launch in candidates)])
    chosen: list[int] = []
    while len(chosen) < min(count, len(candidates)):
        left = [position for position in range(len(candidates)) if position not in chosen]
        gains = [np.square(_told(covariance, range(starts[p], starts[p + 1]))).sum() for p in left]
        chosen.append(left[int(np.argmax(gains))])
        told = _told(covariance, range(starts[chosen[-1]], starts[chosen[-1] + 1]))
        covariance = covariance - told @ told.T
    return chosen


def _misfit(points: Sequence[_Point]) -> Array:
    """Return the covariance of what the mechanisms leave out: alike for kernels of like sizes and channels."""
    kernels = [kernel for kernel, _, _ in points]
    names = [f"{k.collective} {k.algorithm} {k.protocol}" for k in kernels]
    kinds = np.unique(names, return_inverse=True)[1]
    places = np.log2([(k.size_bytes, k.channels) for k in kernels]) / _ALIKE
    apart = np.square(places[:, None, :] - places[None, :, :]).sum(axis=2)
    return np.where(kinds[:, None] == kinds[None, :], _MISFIT**2 * np.exp(-apart / 2), 0.0)


def _told(covariance: Array, rows: range) -> Array:
    """Return the matrix whose square is how much the covariance of all times shrinks when some are measured."""
    block = covariance[rows.start : rows.stop, rows.start : rows.stop]
    lower = np.linalg.cholesky(block + np.eye(len(rows)))
    return np.linalg.solve(lower, covariance[rows.start : rows.stop, :]).T
