"""Which driver the nodes have: what Linux shows, asked where things run."""

import os
import shutil
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from ncclt.cli.recheck import _add_history
from ncclt.core.cluster import Cluster, Fingerprint
from ncclt.measure.open_testbed import ask_drivers
from ncclt.measure.target import Target
from ncclt.nccl.driver_version import drivers_in
from ncclt.prove.recheck import RecheckRequest
from ncclt.store import open_store
from ncclt.testing.samples import sample_cluster, sample_recommendation, sample_study, sample_workload

# As in the documentation of the driver and in public reports of bugs: the proprietary and the open module.
CLOSED = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n"
    "GCC version:  gcc version 11.4.0 (Ubuntu 11.4.0-1ubuntu1~22.04)\n"
)
OPEN = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (dvs-builder@U22-I3-B03-03-5)  "
    "Thu Jan 23 22:46:19 UTC 2025\nGCC version:  gcc version 12.3.0 (Ubuntu 12.3.0-1ubuntu1~22.04)\n"
)
CLUSTER = replace(sample_cluster(nodes=1), gpus_per_node=2)


def test_both_kernel_modules_are_read(subtests):
    cases = [
        (CLOSED, ("535.104.05",)),
        (OPEN, ("570.86.15",)),
        (f"0: {OPEN}1: {OPEN}", ("570.86.15",)),
        (OPEN + CLOSED, ("535.104.05", "570.86.15")),
        ("", ()),
        ("GCC version:  gcc version 12.3.0\n", ()),
        ("NVRM version: something else\n12.3.0\n", ()),
    ]
    for text, found in cases:
        with subtests.test(text=text):
            assert drivers_in(text) == found


def test_what_runs_on_this_machine_is_read_here(tmp_path):
    target = Target(launcher="torchrun", reason="test")
    assert "cannot be read" in ask_drivers(CLUSTER, target, environ={}, root=tmp_path)[1]
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text(OPEN)
    assert ask_drivers(CLUSTER, target, environ={}, root=tmp_path) == ("570.86.15", "")


def test_other_nodes_are_asked_by_their_launcher(tmp_path, monkeypatch):
    if shutil.which("mpirun") is None:
        pytest.skip("mpirun is not installed")
    monkeypatch.setattr("ncclt.measure.open_testbed.DRIVER_FILE", str(tmp_path / "version"))
    target = Target(launcher="mpirun", reason="test", launcher_arg=("--allow-run-as-root", "--oversubscribe"))
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}

    assert "no node showed" in ask_drivers(CLUSTER, target, environ=environ)[1]
    (tmp_path / "version").write_text(OPEN)
    assert ask_drivers(CLUSTER, target, environ=environ)[0] == "570.86.15"


def test_pods_are_not_started_for_it():
    target = Target(launcher="kubernetes", reason="test", launcher_option=("container=image",))
    assert "cannot be queried" in ask_drivers(CLUSTER, target, environ={})[1]


def test_a_driver_is_kept_where_it_is_known_and_old_documents_are_read():
    old, new = CLUSTER, Cluster.from_document({**CLUSTER.to_document(), "driver": "570.86.15"})

    assert "driver" not in old.to_document()
    assert Cluster.from_document(old.to_document()) == old
    assert Fingerprint.from_document(new.fingerprint().to_document()) == new.fingerprint()
    assert "driver" not in old.fingerprint().to_document()
    # Revisions go on across updates; only two known drivers can differ.
    assert new.fingerprint().digest() == old.fingerprint().digest()
    assert new.fingerprint().mismatches(old.fingerprint()) == ()
    other = Cluster.from_document({**CLUSTER.to_document(), "driver": "580.65.06"})
    assert new.fingerprint().mismatches(other.fingerprint()) == ("driver: measured on 570.86.15, asked for 580.65.06",)


@pytest.fixture
def request_(tmp_path):
    """A stored recommendation as `ncclt recheck` would look at it, and its store."""
    with open_store(f"sqlite:///{tmp_path}/store.db") as store:
        study = sample_study()
        store.clusters.add(sample_cluster())
        store.workloads.add(sample_workload())
        store.studies.open(study)
        published = store.revisions.publish(
            sample_recommendation("r1", cluster=study.cluster.name, model=study.workload.name)
        )
        yield store, RecheckRequest(recommendation=published, study=study, trials=())


@pytest.mark.parametrize(
    ("launcher", "backend", "driver", "said"),
    [
        ("torchrun", "nccl", "570.86.15", "the driver of the measurement is unknown"),
        ("simulate", "nccl", "", ""),
        ("torchrun", "gloo", "", ""),
    ],
)
def test_check_asks_only_where_nccl_is_launched(
    request_, tmp_path, monkeypatch, capsys, launcher, backend, driver, said
):
    store, request = request_
    (tmp_path / "version").write_text(OPEN)
    monkeypatch.setattr("ncclt.measure.open_testbed.DRIVER_FILE", str(tmp_path / "version"))
    testbed = SimpleNamespace(runner=SimpleNamespace(cluster=CLUSTER))
    target = Target(launcher=launcher, reason="test", backend=backend, python=sys.executable)

    found = _add_history(request, store, target, testbed, new_driver=False)

    assert (found.driver, found.driver_before) == (driver, "")
    assert said in capsys.readouterr().err
