"""The application service of `ncclt preflight`: a fabric before a job, down to its slow node, link or GPU."""

from __future__ import annotations

from ncclt.health.preflight.checkup import SIZES, TOLERANCE, PreflightCost, PreflightRequest, cost, preflight
from ncclt.health.preflight.probes import Probes, RunnerFor

__all__ = [
    "SIZES",
    "TOLERANCE",
    "PreflightCost",
    "PreflightRequest",
    "Probes",
    "RunnerFor",
    "cost",
    "preflight",
]
