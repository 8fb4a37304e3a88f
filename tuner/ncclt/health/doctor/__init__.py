"""Doctor of a set-up: facts from nvidia-smi, NCCL's log and variables, and the rules that judge them."""

from __future__ import annotations

from ncclt.health.doctor.diagnosis import RULES, Diagnosis, diagnose
from ncclt.health.doctor.facts import Facts
from ncclt.health.doctor.finding import DoctorRule, Finding, Severity

__all__ = ["RULES", "Diagnosis", "DoctorRule", "Facts", "Finding", "Severity", "diagnose"]
