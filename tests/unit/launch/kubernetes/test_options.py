"""Options for pods, from the command line to the manifest."""

import json

import pytest

from ncclt.errors import UsageError
from ncclt.launch.kubernetes.launcher import KubernetesLauncher
from ncclt.launch.launcher import JobShape, parse_options


def test_options_reach_the_manifest():
    words = (
        "container=lab/torch:1",
        "resource.rdma/hca=8",
        "resource.memory=64Gi",
        "node.nvidia.com/gpu.product=H100",
        "node.pool=b",
        "label.kueue.x-k8s.io/queue-name=team",
        "label.app.kubernetes.io/managed-by=another",
        "service-account=tuner",
        "runtime=torch-h100",
        "pending=1800",
    )
    launcher = KubernetesLauncher.create(
        shape=JobShape(nodes=2, processes_per_node=8), options=parse_options(KubernetesLauncher, words), uses_mpi=False
    )
    plan = launcher.plan(("true",), variables={}, timeout_s=60.0)
    job = next(d for d in json.loads(dict(plan.files)["job.json"])["items"] if d["kind"] == "TrainJob")

    def found(name, node):
        inside = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
        here = [node[name]] if isinstance(node, dict) and name in node else []
        return here + [value for part in inside for value in found(name, part)]

    assert (set(found("rdma/hca", job)), set(found("memory", job))) == ({"8"}, {"64Gi"})
    assert {"nvidia.com/gpu.product": "H100", "pool": "b"} in found("nodeSelector", job)
    assert "tuner" in found("serviceAccountName", job)
    assert {"name": "torch-h100"} in found("runtimeRef", job)
    # Kueue looks at the labels of the job itself, and ours cannot be replaced.
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"
    assert job["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "ncclt"
    assert "--pending-s=1800" in plan.argv


def test_what_kubernetes_would_refuse_is_refused():
    wrong = (
        "",
        "resource.rdma/hca",
        "resource.=8",
        "resource.rdma/hca=many",
        "resource=8",
        "image=x",
        "node.pool=",
        "node.pool=a b",
        "node.pool=$(x)",
        "node.pool=a\nb: c",
        "runtime=Bad_Name",
        "ssh-port=0",
        "ssh-port=65536",
        "pending=-1",
        "pending=86401",
    )
    for word in wrong:
        with pytest.raises(UsageError) as caught:
            parse_options(KubernetesLauncher, [word])
        assert repr(word) in caught.value.message
        assert "=" in caught.value.hint
    most = parse_options(KubernetesLauncher, ["ssh-port=65535", "pending=86400"])
    assert most == {"ssh_port": 65535, "pending": 86400}
