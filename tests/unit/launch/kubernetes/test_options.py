"""What a site wants of its pods, as it is written on a command line."""

import json

import pytest

from ncclt.errors import UsageError
from ncclt.launch.kubernetes import launcher as kubernetes
from ncclt.launch.kubernetes.options import site_options
from ncclt.launch.launcher import JobShape


def test_all_words():
    """They are fields of `Site`, and one argument of the launcher."""
    words = [
        "resource.rdma/hca=8",
        "resource.memory=64Gi",
        "node.nvidia.com/gpu.product=H100",
        "node.pool=a",
        "node.pool=b",
        "service-account=tuner",
        "runtime=torch-h100",
        "ssh-port=2222",
        "pending=1800",
    ]
    assert site_options(words) == {
        "resources": (("memory", "64Gi"), ("rdma/hca", "8")),
        "node_selector": (("nvidia.com/gpu.product", "H100"), ("pool", "b")),
        "service_account": "tuner",
        "runtime": "torch-h100",
        "ssh_port": 2222,
        "pending_s": 1800,
    }


def test_they_reach_the_manifest():
    """An RDMA resource without which a pod has no fabric."""
    launcher = kubernetes.create(
        shape=JobShape(nodes=2, processes_per_node=8),
        image="lab/torch:1",
        kind="trainjob",
        pods=("resource.rdma/hca=8", "node.pool=h100", "service-account=tuner"),
    )
    text = dict(launcher.plan(("true",), variables={}, timeout_s=60.0).files)["job.json"]
    job = next(document for document in json.loads(text)["items"] if document["kind"] == "TrainJob")

    def found(name, node):
        inside = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
        here = [node[name]] if isinstance(node, dict) and name in node else []
        return here + [value for part in inside for value in found(name, part)]

    assert set(map(str, found("rdma/hca", job))) == {"8"}
    assert {"pool": "h100"} in found("nodeSelector", job)
    assert "tuner" in found("serviceAccountName", job)


_NO_WORDS = (
    "",
    "resource.rdma/hca",
    "resource.=8",
    "resource.rdma/hca=many",
    "resource=8",
    "image=x",
    "node.pool=",
    "node.pool=a b",
    "ssh-port=0",
    "ssh-port=70000",
    "pending=-1",
    "runtime=Bad_Name",
    "node.pool=$(x)",
    "node.pool=a\nb: c",
)


@pytest.mark.parametrize("word", _NO_WORDS)
def test_what_is_no_word(word):
    """Nothing else gets into a manifest."""
    with pytest.raises(UsageError, match="--kubernetes"):
        site_options([word])


@pytest.mark.parametrize(
    ("option", "field", "most"), [("ssh-port", "ssh_port", 65535), ("pending", "pending_s", 86400)]
)
def test_numbers_go_from_one_to_the_last_port_and_to_a_day(option, field, most):
    assert site_options([f"{option}=1"]) == {field: 1}
    assert site_options([f"{option}={most}"]) == {field: most}
    for wrong in (0, most + 1):
        with pytest.raises(UsageError, match=f"{option}={wrong}"):
            site_options([f"{option}={wrong}"])


def test_labels_reach_the_job_and_replace_none_of_ours():
    """Kueue looks at the labels of the job itself."""
    words = ("label.kueue.x-k8s.io/queue-name=team", "label.app.kubernetes.io/managed-by=another")
    launcher = kubernetes.create(
        shape=JobShape(nodes=2, processes_per_node=8), image="lab/torch:1", kind="trainjob", pods=words
    )
    text = dict(launcher.plan(("true",), variables={}, timeout_s=60.0).files)["job.json"]
    job = next(document for document in json.loads(text)["items"] if document["kind"] == "TrainJob")
    labels = job["metadata"]["labels"]
    assert labels["kueue.x-k8s.io/queue-name"] == "team"
    assert labels["app.kubernetes.io/managed-by"] == "ncclt"
