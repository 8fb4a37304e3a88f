"""What leaves ncclt for every shipped workload, NCCL version and setting, read with NCCL's own rules."""

import importlib.util
import shlex
from pathlib import Path

import pytest

from ncclt.core.cluster import Cluster
from ncclt.core.message import Collective
from ncclt.core.nccl_version import NcclVersion
from ncclt.core.policy import uniform_policy
from ncclt.core.recommendation import Decision, PolicyVerdict, Recommendation, Verdict
from ncclt.deliver.render.formats import render
from ncclt.errors import SettingError
from ncclt.search.space import cluster_space
from ncclt.store.shipped import profiles_folder, shipped_clusters, shipped_workloads

_ORACLE = Path(__file__).resolve().parents[1] / "unit" / "nccl" / "nccl_syntax.py"
_spec = importlib.util.spec_from_file_location("nccl_syntax_of_emitted", _ORACLE)
oracle = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(oracle)

FUNCTION = {
    Collective.ALL_REDUCE: "AllReduce",
    Collective.ALL_GATHER: "AllGather",
    Collective.REDUCE_SCATTER: "ReduceScatter",
    Collective.BROADCAST: "Broadcast",
    Collective.REDUCE: "Reduce",
}
VERSIONS = [f"2.{minor}.3" for minor in range(18, 33)]
WORKLOADS = list(shipped_workloads(profiles_folder()).values())
CLUSTERS = shipped_clusters(profiles_folder())
PROVEN = Verdict(
    decision=Decision.TUNED, reason="", speedup=1.1, interval=(1.05, 1.15), blocks=6, default_us=11, policy_us=10
)


def variables_of(text):
    """The variables that a shell would set."""
    words = [shlex.split(line) for line in text.splitlines() if line.startswith("export ")]
    return dict(word[1].split("=", 1) for word in words)


@pytest.mark.parametrize("name", ["leonardo", pytest.param("dgx-h100", marks=pytest.mark.thorough)])
def test_no_emitted_variable_is_illegal_for_any_collective_of_a_shipped_workload(name, subtests):
    for workload in WORKLOADS:
        for version in VERSIONS:
            with subtests.test(workload=workload.name, version=version):
                check_emitted(workload, version, name)


def check_emitted(workload, version, name):
    cluster = Cluster.from_document({**CLUSTERS[name].to_document(), "nccl_version": version})
    parsed = NcclVersion.parse(version)
    emitted = 0
    for setting in cluster_space(workload.collectives, cluster, parameters={}).distinct:
        policy = uniform_policy(setting, workload.collectives, version=parsed)
        policy_verdict = PolicyVerdict(policy=policy, verdict=PROVEN)
        recommendation = Recommendation(
            id="r",
            revision=1,
            study="s",
            cluster=name,
            model=workload.name,
            workload_digest="d",
            collectives=workload.collectives,
            fingerprint=cluster.fingerprint(),
            table=policy_verdict,
            variables=policy_verdict,
            simulated=False,
            launcher="local",
            created="2026-01-01",
        )
        try:
            variables = variables_of(render(recommendation, format="export"))
        except SettingError:
            pytest.fail(f"{setting.label} was proposed and cannot be compiled")
        enabled = oracle.enabled(variables, parsed)
        for collective in workload.collectives & set(FUNCTION):
            assert enabled[FUNCTION[collective]], (setting.label, variables)
        assert not oracle.forces_ll128(variables, parsed)
        assert "LL128" not in variables.get("NCCL_PROTO", "").upper()
        assert "^" not in "".join(variables.values())
        emitted += any(key.startswith("NCCL_") for key in variables)
    assert emitted > 0
