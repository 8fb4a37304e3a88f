"""The application service of `ncclt preflight`: a fabric before a job, down to its slow node, link or GPU."""

from __future__ import annotations

from ncclt.health.preflight.probes import Probes, RunnerFor
from ncclt.health.preflight.request import SIZES, TOLERANCE, PreflightRequest
from ncclt.health.preflight.service import PreflightCost, cost, preflight

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
