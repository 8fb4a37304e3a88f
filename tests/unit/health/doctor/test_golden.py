"""Whole set-ups against the findings that were checked by eye; tests/golden/doctor/README.md says what they follow."""

import json
from pathlib import Path

from ncclt.health.doctor.examine import examine_files

GOLDEN = Path(__file__).resolve().parents[3] / "golden" / "doctor"


def _findings(diagnosis):
    return [
        {"id": f.id, "severity": f.severity.value, "what": f.what, "first": str(f.evidence[0]) if f.evidence else ""}
        for f in diagnosis.findings
    ]


def test_findings_of_a_set_up(subtests):
    """Everything that is wrong is found, nothing else is, and each finding shows its line."""
    for case in ["healthy_h100", "sockets_a100", "fallback_4xa100", "old_pcie_box"]:
        with subtests.test(case=case):
            diagnosis = examine_files([GOLDEN / case])

            assert json.loads((GOLDEN / f"{case}.json").read_text()) == {
                "verdict": diagnosis.verdict,
                "findings": _findings(diagnosis),
            }
