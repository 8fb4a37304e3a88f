import json

import pytest

from ncclt.errors import InputError
from ncclt.store import open_store
from ncclt.store.shipped import profiles_folder, shipped_clusters, shipped_workloads
from ncclt.testing.samples import sample_workload

CLUSTER = """
name = "pair"
gpus_per_node = 2
gpu = "L40S"
compute_capability = 89
link_class = "pcie"
link_gbps = 26.0
nccl_version = "2.28.9"
sources = ["made up"]
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "workloads").mkdir()
    (tmp_path / "clusters").mkdir()
    (tmp_path / "workloads" / "toy.json").write_text(json.dumps(sample_workload().to_document()))
    (tmp_path / "clusters" / "pair.toml").write_text(CLUSTER)
    return tmp_path


def test_both_kinds_are_read_by_name(folder):
    assert shipped_workloads(folder) == {"toy": sample_workload()}
    assert shipped_clusters(folder)["pair"].gpu == "L40S"


def test_the_folder_of_the_checkout_is_found():
    assert profiles_folder().is_dir()


def test_a_broken_file_is_named(folder, subtests):
    workloads = ["{", "[]", "null", '{"schema": 1}', '{"schema": 2}', "\ufeff{}"]
    clusters = ["name", 'name = "x"', CLUSTER + "extra = 1", CLUSTER.replace("2.28.9", "new"), b"\xff\xfe"]
    for read, name, contents in (
        (shipped_workloads, "workloads/broken.json", workloads),
        (shipped_clusters, "clusters/broken.toml", clusters),
    ):
        for content in contents:
            with subtests.test(content=content):
                (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
                with pytest.raises(InputError, match=r"broken\.(json|toml)"):
                    read(folder)


def test_two_files_of_one_name_are_an_error(folder):
    (folder / "clusters" / "second.toml").write_text(CLUSTER)
    with pytest.raises(InputError, match="repeats the name 'pair'"):
        shipped_clusters(folder)


def test_a_broken_shipped_file_reaches_the_caller_of_the_store(folder, tmp_path):
    """It is the file's fault and not the database's."""
    (folder / "workloads" / "broken.json").write_text("{")
    with open_store(f"sqlite:///{tmp_path}/a.db", profiles=folder) as store, pytest.raises(InputError, match="broken"):
        store.workloads.entries()
