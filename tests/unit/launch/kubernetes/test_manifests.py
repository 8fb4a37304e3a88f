"""What is asked of a cluster, read back as kubectl reads it and held against the fields that the operators demand."""

import json

import pytest

from ncclt.launch.kubernetes.manifests import LaunchedJob, Site, manifests
from ncclt.launch.launcher import JobShape

SITE = Site(container="registry.example/x:1", namespace="lab", gpus_per_node=8, resource=(("rdma/hca", "8"),))

# Required fields and types, from the custom resource definitions of mpi-operator (kubeflow.org/v2beta1) and of Kubeflow
# Trainer 2.2 (trainer.kubeflow.org/v1alpha1); a key that is not listed is unknown there.
CONTAINER = {
    "name!": str,
    "image": str,
    "command": [str],
    "env": [{"name!": str, "value!": str}],
    "volumeMounts": [{"name!": str, "mountPath!": str, "readOnly": bool}],
    "resources": {"limits": {str: (int, str)}},
    "readinessProbe": {"tcpSocket": {"port!": int}, "periodSeconds": int},
    "securityContext": {"capabilities": {"add": [str]}},
}
POD = {
    "metadata!": {"labels": {str: str}},
    "spec!": {
        "containers!": [CONTAINER],
        "volumes": [{"name!": str, "emptyDir": {"medium": str}, "configMap": {"name!": str}}],
        "serviceAccountName": str,
        "nodeSelector": {str: str},
        "tolerations": [{"key": str, "operator": str, "effect": str}],
    },
}
REPLICAS = {"replicas!": int, "restartPolicy!": str, "template!": POD}
METADATA = {"name!": str, "namespace!": str, "labels": {str: str}}
CONFIG_MAP = {"apiVersion!": str, "kind!": str, "metadata!": METADATA, "data!": {str: str}}
MPI_JOB = {
    "apiVersion!": str,
    "kind!": str,
    "metadata!": METADATA,
    "spec!": {
        "slotsPerWorker": int,
        "mpiImplementation": str,
        "sshAuthMountPath": str,
        "launcherCreationPolicy": str,
        "runPolicy!": {
            "cleanPodPolicy": str,
            "backoffLimit": int,
            "activeDeadlineSeconds": int,
            "ttlSecondsAfterFinished": int,
        },
        "mpiReplicaSpecs!": {"Launcher!": REPLICAS, "Worker!": REPLICAS},
    },
}
TRAIN_JOB = {
    "apiVersion!": str,
    "kind!": str,
    "metadata!": METADATA,
    "spec!": {
        "activeDeadlineSeconds": int,
        "runtimeRef!": {"name!": str},
        "trainer": {
            "image": str,
            "numNodes": int,
            "numProcPerNode": int,
            "command": [str],
            "env": [{"name!": str, "value!": str}],
            "resourcesPerNode": {"limits": {str: (int, str)}},
        },
        "runtimePatches": [
            {
                "manager!": str,
                "trainingRuntimeSpec": {
                    "template": {"spec": {"replicatedJobs": [{"name!": str, "template": {"spec": {"template": POD}}}]}}
                },
            }
        ],
    },
}


def check(value, schema, where=""):
    """Fail where a value is not what a schema says: {key: schema}, `!` = required, str as key = any; [schema]; type."""
    if isinstance(schema, list):
        assert isinstance(value, list), where
        for number, each in enumerate(value):
            check(each, schema[0], f"{where}[{number}]")
    elif isinstance(schema, dict):
        assert isinstance(value, dict), where
        known = {str(key).rstrip("!"): each for key, each in schema.items()}
        for key, each in value.items():
            assert str in schema or key in known, f"{where}.{key} is unknown"
            check(each, schema.get(str, known.get(key)), f"{where}.{key}")
        missing = [key for key in schema if isinstance(key, str) and key.endswith("!") and key[:-1] not in value]
        assert not missing, f"{where} lacks {missing}"
    else:
        assert isinstance(value, schema), f"{where} is {value!r}"


def made(kind, *, site=SITE, files=(("w.py", "print('µ')\n"),), **changes):
    job = LaunchedJob(
        **{
            "argv": ("python3", "/ncclt/w.py", "-b", "8"),
            "variables": (("NCCL_ALGO", "Ring"), ("NCCL_IB_HCA", "mlx5_0,mlx5_1")),
            "files": files,
            "shape": JobShape(nodes=2, processes_per_node=8),
            "timeout_s": 119.5,
            **changes,
        }
    )
    documents = json.loads(json.dumps(manifests(kind, job, site)))
    return documents[-1], documents[:-1]


@pytest.mark.parametrize(("kind", "schema"), [("mpijob", MPI_JOB), ("trainjob", TRAIN_JOB)])
@pytest.mark.parametrize(
    "site", [SITE, Site(container="x"), Site(container="x", service_account="ana", node=(("a", "b"),))]
)
def test_every_field_is_known_and_none_is_missing(kind, schema, site):
    body, others = made(kind, site=site)
    check(body, schema)
    for other in others:
        check(other, CONFIG_MAP)


@pytest.mark.parametrize("kind", ["mpijob", "trainjob"])
def test_all_of_a_launch_can_be_found_by_one_label(kind):
    body, (config_map,) = made(kind)
    text = json.dumps(body)
    assert config_map["metadata"]["labels"]["ncclt-launch"] == body["metadata"]["name"]
    # The job, and the template of every kind of pod.
    assert text.count(f'"ncclt-launch": "{body["metadata"]["name"]}"') == (3 if kind == "mpijob" else 2)
