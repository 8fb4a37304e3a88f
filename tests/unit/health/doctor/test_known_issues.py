"""Releases with known trouble, where they show and where they do not."""

import dataclasses
from pathlib import Path

from ncclt.core.nccl_version import NcclVersion
from ncclt.health.doctor import Facts
from ncclt.health.doctor.rules_log import KNOWN_ISSUES
from ncclt.store.shipped import profiles_folder, shipped_clusters

CLUSTERS = shipped_clusters(profiles_folder())
GRACE = dataclasses.replace(CLUSTERS["dgx-h100"], gpu="GB200", cpu="arm")
BLACKWELL = dataclasses.replace(CLUSTERS["dgx-h100"], gpu="B200")
BOARDS = dataclasses.replace(CLUSTERS["pcie-pair"], gpu="NVIDIA GeForce RTX 5090")


def _troubles(version, cluster, **sized):
    facts = Facts(version=NcclVersion.parse(version), cluster=cluster.sized(**sized))
    return [trouble.source.partition(",")[0].partition(" (")[0] for trouble in KNOWN_ISSUES if trouble.applies(facts)]


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


def test_trouble_between_nodes_is_none_within_one():
    assert _troubles("2.27.3", CLUSTERS["leonardo"], nodes=1) == []
    assert _troubles("2.18.6", CLUSTERS["dgx-h100"], nodes=2) == ["NVIDIA/nccl-tests#167", "NVIDIA/nccl#1043"]


def test_spans_are_in_order_and_sources_named():
    for trouble in KNOWN_ISSUES:
        assert NcclVersion.parse(trouble.since) < NcclVersion.parse(trouble.until)
        assert any(mark in trouble.source for mark in ("#", "pull request", "user guide", "release notes"))


def test_an_unknown_version_has_no_known_trouble():
    assert not any(trouble.applies(Facts()) for trouble in KNOWN_ISSUES)
    assert Path(profiles_folder()).is_dir()
