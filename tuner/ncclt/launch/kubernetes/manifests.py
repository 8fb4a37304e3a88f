"""The objects of one launch on Kubernetes: an MPIJob or a TrainJob, and the files it reads as a ConfigMap; pure.

MPIJob is kubeflow.org/v2beta1 (mpi-operator 0.4 or newer: `launcherCreationPolicy`), TrainJob is
trainer.kubeflow.org/v1alpha1 (Kubeflow Trainer 2.2 or newer: `runtimePatches`). Not tested on a cluster.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ncclt.launch.launcher import MARK, JobShape

Node = str | int | bool | Sequence["Node"] | Mapping[str, "Node"]
"""A value in a manifest."""

FILES_PATH = "/ncclt"
"""The folder of a launch's files in every container."""

LAUNCH_LABEL = "ncclt-launch"
"""On everything that belongs to one launch; its value is the launch's name."""

NAME = f"ncclt-{MARK}"
"""Of all objects of a launch, RFC 1035."""

PENDING_S = 600.0
"""Max wait for nodes, images and containers: the first image on a node is tens of gigabytes."""

_ENDING_S = 120
"""Added to all other times; after their sum the cluster itself ends a job, whatever has become of ncclt."""

_GPU = "nvidia.com/gpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Requirements of one cluster and one user for every job, as the options of the launcher.

    Attributes:
        container: image of all containers; for an MPIJob with an OpenSSH server, Open MPI and the benchmark.
        namespace: namespace of the objects.
        gpus_per_node: limit of `nvidia.com/gpu` for each worker; 0 = none.
        resource: (name, amount) of further resources of each worker, for example ("rdma/hca", "8"); their pods may
            lock memory, which RDMA needs.
        service_account: account of the pods; empty = the namespace's default.
        node: (label, value) that nodes must have.
        label: (name, value) of further labels of the job, for example ("kueue.x-k8s.io/queue-name", "team").
        runtime: (Cluster)TrainingRuntime of a TrainJob.
        ssh_port: port of the image's sshd, for an MPIJob.
        pending: max time to wait for nodes, images and containers, s.
    """

    container: str
    namespace: str = "default"
    gpus_per_node: int = 0
    resource: tuple[tuple[str, str], ...] = ()
    service_account: str = ""
    node: tuple[tuple[str, str], ...] = ()
    label: tuple[tuple[str, str], ...] = ()
    runtime: str = "torch-distributed"
    ssh_port: int = 22
    pending: float = PENDING_S


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchedJob:
    """Command of one launch and its environment.

    Attributes:
        argv: the command of one process, its files already under `FILES_PATH`.
        variables: for every process.
        files: (name, text).
        shape: pods, and processes in each.
        timeout_s: for the command itself.
    """

    argv: tuple[str, ...]
    variables: tuple[tuple[str, str], ...]
    files: tuple[tuple[str, str], ...]
    shape: JobShape
    timeout_s: float


def manifests(kind: str, job: LaunchedJob, site: Site) -> list[Mapping[str, Node]]:
    """Return the objects of a launch.

    Args:
        kind: `mpijob` for programs that were built with MPI, `trainjob` for those that torchrun starts.
    """
    body = mpi_job(job, site) if kind == "mpijob" else train_job(job, site)
    if not job.files:
        return [body]
    return [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": _metadata(site), "data": dict(job.files)}, body]


def mpi_job(job: LaunchedJob, site: Site) -> Mapping[str, Node]:
    """Return an MPIJob: one pod that runs mpirun, and a pod for each node."""
    names = [name for name, _value in job.variables]
    # An ssh session to a worker has none of the container's environment, so mpirun forwards it, the image's paths too.
    exported = [word for name in ("PATH", "LD_LIBRARY_PATH", *names) for word in ("-x", name)]
    command = [
        *("mpirun", "--allow-run-as-root", "-np", str(job.shape.world_size)),
        *("--map-by", f"ppr:{job.shape.processes_per_node}:node", "--bind-to", "none"),
        *exported,
        *job.argv,
    ]
    launcher = _container("launcher", job, site) | {"command": command}
    worker = _container("worker", job, site) | {
        "resources": {"limits": _limits(site)},
        # The launcher is made when all workers are ready, that is, reachable.
        "readinessProbe": {"tcpSocket": {"port": site.ssh_port}, "periodSeconds": 2},
    }
    return {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": _metadata(site),
        "spec": {
            "slotsPerWorker": job.shape.processes_per_node,
            "mpiImplementation": "OpenMPI",
            "sshAuthMountPath": "/root/.ssh",
            "launcherCreationPolicy": "WaitForWorkersReady",
            "runPolicy": {
                "cleanPodPolicy": "Running",
                # A failure is a result; it is never retried silently.
                "backoffLimit": 0,
                "activeDeadlineSeconds": _deadline_s(job, site),
                "ttlSecondsAfterFinished": 600,
            },
            "mpiReplicaSpecs": {
                "Launcher": _replicas(1, _pod(job, site) | {"containers": [launcher]}),
                "Worker": _replicas(job.shape.nodes, _pod(job, site) | _placement(site) | {"containers": [worker]}),
            },
        },
    }


def train_job(job: LaunchedJob, site: Site) -> Mapping[str, Node]:
    """Return a TrainJob whose every pod runs torchrun, which gets the addresses of the others from the runtime."""
    container = {
        key: value for key, value in _container("node", job, site).items() if key not in ("image", "env")
    }  # these have fields of their own in a TrainJob
    patch: dict[str, Node] = {
        "metadata": {"labels": _labels()},
        "spec": _pod(job, site) | _placement(site) | {"containers": [container]},
    }
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": _metadata(site),
        "spec": {
            "activeDeadlineSeconds": _deadline_s(job, site),
            "runtimeRef": {"name": site.runtime},
            "trainer": {
                "image": site.container,
                "numNodes": job.shape.nodes,
                "numProcPerNode": job.shape.processes_per_node,
                "command": ["torchrun", "--no-python", *job.argv],
                "env": _environment(job),
                "resourcesPerNode": {"limits": _limits(site)},
            },
            "runtimePatches": [
                {
                    "manager": "ncclt",
                    "trainingRuntimeSpec": {
                        "template": {
                            "spec": {"replicatedJobs": [{"name": "node", "template": {"spec": {"template": patch}}}]}
                        }
                    },
                }
            ],
        },
    }


def _deadline_s(job: LaunchedJob, site: Site) -> int:
    """Return the seconds after which the cluster ends a job by itself."""
    return math.ceil(job.timeout_s + site.pending) + _ENDING_S


def _metadata(site: Site) -> Mapping[str, Node]:
    return {"name": NAME, "namespace": site.namespace, "labels": dict(site.label) | _labels()}


def _labels() -> dict[str, Node]:
    return {"app.kubernetes.io/managed-by": "ncclt", LAUNCH_LABEL: NAME}


def _replicas(count: int, pod: Mapping[str, Node]) -> Mapping[str, Node]:
    return {
        "replicas": count,
        "restartPolicy": "Never",
        "template": {"metadata": {"labels": _labels()}, "spec": pod},
    }


def _pod(job: LaunchedJob, site: Site) -> dict[str, Node]:
    # NCCL's ranks of one pod share memory; a container's default /dev/shm has 64 MiB.
    volumes: list[Node] = [{"name": "shared-memory", "emptyDir": {"medium": "Memory"}}]
    if job.files:
        volumes.append({"name": "ncclt-files", "configMap": {"name": NAME}})
    account: dict[str, Node] = {"serviceAccountName": site.service_account} if site.service_account else {}
    return {**account, "volumes": volumes}


def _placement(site: Site) -> dict[str, Node]:
    selector: dict[str, Node] = {"nodeSelector": dict(site.node)} if site.node else {}
    if not site.gpus_per_node:
        return selector
    return {**selector, "tolerations": [{"key": _GPU, "operator": "Exists", "effect": "NoSchedule"}]}


def _container(name: str, job: LaunchedJob, site: Site) -> dict[str, Node]:
    mounts: list[Node] = [{"name": "shared-memory", "mountPath": "/dev/shm"}]  # noqa: S108  of the container
    if job.files:
        mounts.append({"name": "ncclt-files", "mountPath": FILES_PATH, "readOnly": True})
    container: dict[str, Node] = {
        "name": name,
        "image": site.container,
        "env": _environment(job),
        "volumeMounts": mounts,
    }
    if site.resource:
        container["securityContext"] = {"capabilities": {"add": ["IPC_LOCK"]}}
    return container


def _environment(job: LaunchedJob) -> Sequence[Node]:
    return [{"name": name, "value": value} for name, value in job.variables]


def _limits(site: Site) -> dict[str, Node]:
    gpus: dict[str, Node] = {_GPU: site.gpus_per_node} if site.gpus_per_node else {}
    return {**gpus, **dict(site.resource)}
