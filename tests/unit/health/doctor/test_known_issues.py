"""Releases with known trouble, where they show and where they do not."""

import dataclasses

from ncclt.core.nccl_version import NcclVersion
from ncclt.health.doctor import Facts, diagnose
from ncclt.health.doctor.known_issues import KNOWN_ISSUES, find_upgrade_issues
from ncclt.nccl.log.evidence import Evidence, Variable
from ncclt.store.shipped import profiles_folder, shipped_clusters

CLUSTERS = shipped_clusters(profiles_folder())
GRACE = dataclasses.replace(CLUSTERS["dgx-h100"], gpu="GB200", cpu="arm")
BLACKWELL = dataclasses.replace(CLUSTERS["dgx-h100"], gpu="B200")
BOARDS = dataclasses.replace(CLUSTERS["pcie-pair"], gpu="NVIDIA GeForce RTX 5090")


def _troubles(version, cluster, **sized):
    facts = Facts(version=NcclVersion.parse(version), cluster=cluster.sized(**sized))
    return [
        trouble.source.partition(",")[0].partition(" (")[0]
        for trouble in KNOWN_ISSUES
        if trouble.applies(facts) and not trouble.is_relative
    ]


def test_trouble_of_a_release_on_a_cluster(subtests):
    for version, cluster, sources in [
        ("2.22.3", CLUSTERS["leonardo"], []),
        ("2.27.3", CLUSTERS["leonardo"], ["NVIDIA/nccl#1876"]),
        ("2.29.3", CLUSTERS["leonardo"], []),
        ("2.28.9", CLUSTERS["dgx-h100"], ["NCCL user guide"]),
        ("2.17.1", CLUSTERS["dgx-h100"], ["NVIDIA/JAX-Toolbox pull request 331"]),
        ("2.28.9", CLUSTERS["dgx-a100"], []),
        ("2.28.9", GRACE, ["NCCL 2.29.3 release notes; marin-community/marin#7344", "NCCL user guide"]),
        ("2.30.7", GRACE, []),
        ("2.21.5", BLACKWELL, ["NVIDIA/nccl#1611"]),
        ("2.25.1", BOARDS, ["NVIDIA/nccl#1637"]),
        ("2.19.4", CLUSTERS["aws-p4d"], ["awslabs/awsome-distributed-ai pull request 217"]),
    ]:
        with subtests.test(version=version, cluster=cluster, sources=sources):
            assert _troubles(version, cluster) == sources
    assert _troubles("2.27.3", CLUSTERS["leonardo"], nodes=1) == []
    assert _troubles("2.18.6", CLUSTERS["dgx-h100"], nodes=2) == ["NVIDIA/nccl-tests#167", "NVIDIA/nccl#1043"]
    assert not any(trouble.applies(Facts()) for trouble in KNOWN_ISSUES)


def test_spans_are_in_order_and_sources_named():
    for trouble in KNOWN_ISSUES:
        assert not trouble.until or NcclVersion.parse(trouble.since) < NcclVersion.parse(trouble.until)
        assert any(mark in trouble.source for mark in ("#", "pull request", "user guide", "release notes"))


def _brought(before, after, cluster, *environment):
    def facts(version):
        evidence = Evidence(source="environment", text="")
        return Facts(
            version=NcclVersion.parse(version),
            cluster=cluster,
            environment=tuple(Variable(name=name, value=value, evidence=evidence) for name, value in environment),
        )

    return [issue.link.rpartition("/")[2] for issue in find_upgrade_issues(facts(before), facts(after))]


def test_an_upgrade_brings_what_was_reported_for_it(subtests):
    dgx = CLUSTERS["dgx-h100"]
    for before, after, cluster, numbers in [
        ("2.28.9", "2.32.3", dgx, ["2094"]),
        ("2.22.3", "2.24.3", dgx, ["1997"]),
        ("2.28.9", "2.29.7", dgx, ["2094", "2058", "3391"]),
        ("2.29.7", "2.32.3", dgx, []),
        ("2.32.3", "2.28.9", dgx, [""]),
        ("2.28.9", "2.32.3", CLUSTERS["dgx-a100"], []),
        ("2.22.3", "2.27.3", CLUSTERS["leonardo"], ["1876"]),
        ("2.28.9", "2.29.2", CLUSTERS["dgx-a100"], ["174338"]),
    ]:
        with subtests.test(before=before, after=after, cluster=cluster.name):
            assert _brought(before, after, cluster) == numbers


def test_variables_bring_their_issues():
    a100 = CLUSTERS["dgx-a100"]
    assert _brought("2.29.7", "2.31.2", a100, ("NCCL_PROFILER_PLUGIN", "example")) == ["2355"]
    assert _brought("2.29.7", "2.31.2", a100, ("NCCL_PROFILER_PLUGIN", "none")) == []
    assert _brought("2.29.7", "2.31.2", a100, ("NCCL_CHUNK_SIZE", "2097152")) == ["2408"]
    assert _brought("2.29.7", "2.31.2", a100, ("NCCL_CHUNK_SIZE", "524288")) == []


def test_an_issue_of_speed_is_no_finding_of_the_doctor():
    facts = Facts(version=NcclVersion(2, 32, 3), cluster=CLUSTERS["dgx-h100"])
    assert any(issue.is_relative and issue.applies(facts) for issue in KNOWN_ISSUES)
    assert "VER001" not in [finding.id for finding in diagnose(facts).findings]
