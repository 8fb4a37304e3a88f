"""The base for Kubernetes, as far as it can be judged without a cluster."""

import re
import shutil
import subprocess
from pathlib import Path

import kubernetes_validate
import pytest
import typer
import yaml

from ncclt.cli.application import app

ROOT = Path(__file__).parents[3]
BASE = ROOT / "api/deploy/kubernetes"
GUIDE = (ROOT / "docs/operator/service.md").read_text(encoding="utf-8")


def objects(*paths):
    return [one for path in paths for one in yaml.safe_load_all(path.read_text(encoding="utf-8"))]


def base():
    """Return the objects of the files that the kustomization names."""
    names = yaml.safe_load((BASE / "kustomization.yaml").read_text(encoding="utf-8"))["resources"]
    assert {"kustomization.yaml", "optional", *names} == {path.name for path in BASE.iterdir()}
    return objects(*(BASE / name for name in names))


OPTIONAL = sorted((BASE / "optional").iterdir())
"""What a kustomization names beside the base."""

MANIFESTS = [*base(), *objects(*OPTIONAL)]
PODS = {
    one["metadata"]["name"]: one["spec"].get("jobTemplate", one)["spec"]["template"]
    for one in MANIFESTS
    if one["kind"] in ("Deployment", "CronJob")
}
CONTAINERS = {
    f"{name}/{container['name']}": container
    for name, pod in PODS.items()
    for container in (*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"])
}
VARIABLES = [(where, variable) for where, container in CONTAINERS.items() for variable in container["env"]]


@pytest.fixture(scope="module")
def compose():
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]


def of(kind):
    return [one for one in MANIFESTS if one["kind"] == kind]


def accepted(command):
    """Let the command line read a container's command; what it does not know raises an error."""
    program, *words = command
    assert program == "ncclt"
    found = typer.main.get_command(app)
    while hasattr(found, "resolve_command"):
        _, found, words = found.resolve_command(typer.Context(found), words)
    found.make_context(program, list(words))


def test_every_object_is_there_and_in_no_namespace():
    kinds = sorted(one["kind"] for one in MANIFESTS)
    several = [*["Deployment"] * 2, *["Ingress"] * 3, *["NetworkPolicy"] * 3]
    assert kinds == ["CronJob", *several, "PodDisruptionBudget", "Service"]
    assert not any("namespace" in one["metadata"] for one in MANIFESTS)
    migrate = {"ncclt-api/migrate", "ncclt-worker/migrate"}
    assert set(CONTAINERS) == {*migrate, "ncclt-api/api", "ncclt-worker/worker", "ncclt-retune/retune"}


def test_every_command_is_one_that_the_command_line_knows(subtests):
    for where in CONTAINERS:
        with subtests.test(where=where):
            accepted(CONTAINERS[where]["command"])
            probe = CONTAINERS[where].get("readinessProbe", {})
            if "exec" in probe:
                accepted(probe["exec"]["command"])


def test_commands_and_images_are_those_of_compose(compose):
    assert CONTAINERS["ncclt-worker/worker"]["command"] == compose["worker"]["command"]
    for where in ("ncclt-api/migrate", "ncclt-worker/migrate"):
        assert CONTAINERS[where]["command"] == compose["migrate"]["command"]
    # Compose listens without keys, which is tolerable on loopback alone.
    words = compose["api-1"]["command"]
    assert CONTAINERS["ncclt-api/api"]["command"] == words[: words.index("--insecure-no-auth")]
    for name, service in (("ncclt-api", "api-1"), ("ncclt-worker", "worker")):
        images = {container["image"] for where, container in CONTAINERS.items() if where.startswith(f"{name}/")}
        assert images == {compose[service]["image"]}


def test_variables_are_those_of_compose_and_explained(compose):
    explained = (ROOT / "docs/reference/variables.md").read_text(encoding="utf-8")
    for where, service in (("ncclt-api/api", "api-1"), ("ncclt-worker/worker", "worker")):
        names = {variable["name"] for variable in CONTAINERS[where]["env"]}
        assert names == set(compose[service]["environment"])
    for where, variable in VARIABLES:
        assert f"`{variable['name']}`" in (explained if variable["name"].startswith("NCCLT_") else GUIDE), where


def test_what_is_secret_comes_from_a_secret_that_the_guide_makes():
    secret = [(where, one) for where, one in VARIABLES if "valueFrom" in one]
    assert {one["name"] for _, one in secret} == {"NCCLT_STORAGE", "NCCLT_SESSION_SECRET"}
    assert {where for where, one in secret if one["name"] == "NCCLT_STORAGE"} == set(CONTAINERS)
    made = re.search(r"kubectl create secret generic (\S+)((?: \\\n)?.*?)\n(?=\S)", GUIDE, re.DOTALL)
    keys = set(re.findall(r"--from-literal=([\w-]+)=", made[2]))
    asked = [one["valueFrom"]["secretKeyRef"] for _, one in secret]
    assert {one["name"] for one in asked} == {made[1]}
    assert {one["key"] for one in asked} == keys


def test_containers_are_locked_down_as_in_compose(subtests):
    for where in CONTAINERS:
        with subtests.test(where=where):
            container = CONTAINERS[where]
            assert container["securityContext"] == {
                "readOnlyRootFilesystem": True,
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
            }
            pod = PODS[where.partition("/")[0]]["spec"]
            image = (ROOT / container["image"].removeprefix("ncclt-") / "Dockerfile").read_text(encoding="utf-8")
            uid = int(re.search(r"--uid (\d+)", image)[1])
            assert pod["securityContext"] == {
                "runAsNonRoot": True,
                "runAsUser": uid,
                "runAsGroup": uid,
                "seccompProfile": {"type": "RuntimeDefault"},
            }
            assert pod["automountServiceAccountToken"] is pod["enableServiceLinks"] is False
            volumes = {volume["name"]: volume["emptyDir"] for volume in pod["volumes"]}
            assert {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]} == {
                name: {"tmp": "/tmp", "home": "/home/ncclt"}[name] for name in volumes
            }


def test_replicas_are_reached_watched_and_not_all_ended_at_once():
    api = PODS["ncclt-api"]
    (container,) = api["spec"]["containers"]
    (port,) = container["ports"]
    probes = {name: container[name]["httpGet"] for name in ("livenessProbe", "readinessProbe")}
    assert {name: (probe["path"], probe["port"]) for name, probe in probes.items()} == {
        "livenessProbe": ("/healthz", port["name"]),
        "readinessProbe": ("/readyz", port["name"]),
    }
    (service,), (budget,) = of("Service"), of("PodDisruptionBudget")
    labels = api["metadata"]["labels"]
    assert service["spec"]["selector"] == budget["spec"]["selector"]["matchLabels"] == labels
    assert [one["targetPort"] for one in service["spec"]["ports"]] == [port["name"]]
    (deployed,) = [one for one in of("Deployment") if one["metadata"]["name"] == "ncclt-api"]
    assert deployed["spec"]["replicas"] > budget["spec"]["minAvailable"] >= 1
    (address,) = [one["value"] for one in container["env"] if one["name"] == "NCCLT_PUBLIC_URL"]
    assert address == f"http://{service['metadata']['name']}:{service['spec']['ports'][0]['port']}"
    assert port["containerPort"] == 8080, "where `ncclt serve` listens"


def test_each_deployment_selects_its_pods_and_has_a_policy():
    for one in of("Deployment"):
        labels = one["spec"]["template"]["metadata"]["labels"]
        assert one["spec"]["selector"]["matchLabels"] == labels == one["metadata"]["labels"]
    selected = [one["spec"]["podSelector"]["matchLabels"] for one in of("NetworkPolicy")]
    assert selected == [pod["metadata"]["labels"] for pod in PODS.values()]
    assert all(one["spec"]["policyTypes"] == ["Ingress", "Egress"] for one in of("NetworkPolicy"))
    opened = [
        [port["port"] for rule in one["spec"]["ingress"] for port in rule["ports"]] for one in of("NetworkPolicy")
    ]
    assert opened == [["http"], [], []]


def test_the_ingress_limits_sign_ins_and_nothing_else():
    master, *minions = of("Ingress")
    assert [rule["host"] for rule in master["spec"]["rules"]] == master["spec"]["tls"][0]["hosts"]
    (service,) = of("Service")
    limited = {}
    for one in minions:
        (rule,) = one["spec"]["rules"]
        (path,) = rule["http"]["paths"]
        assert rule["host"] == master["spec"]["rules"][0]["host"]
        assert path["backend"]["service"]["name"] == service["metadata"]["name"]
        annotations = one["metadata"]["annotations"]
        limited[path["path"]] = annotations.get("nginx.org/limit-req-rate")
        assert ("nginx.org/limit-req-reject-code" in annotations) == (limited[path["path"]] is not None)
    assert limited == {"/": None, "/sign-in": "20r/m"}


def test_every_object_is_valid_in_the_schemas_of_kubernetes(subtests):
    for manifest in MANIFESTS:
        with subtests.test(manifest=manifest):
            kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_a_kustomization_takes_the_optional_files_too(tmp_path):
    shutil.copytree(BASE, tmp_path / "ncclt/api/deploy/kubernetes")
    resources = re.search(r"(?ms)^resources:\n(.*?)^images:", GUIDE)[0].removesuffix("images:")
    assert all(path.name in resources for path in OPTIONAL)
    (tmp_path / "kustomization.yaml").write_text(resources)
    done = subprocess.run(["kubectl", "kustomize", tmp_path], check=True, capture_output=True, text=True, timeout=60)
    assert len(list(yaml.safe_load_all(done.stdout))) == len(MANIFESTS)
