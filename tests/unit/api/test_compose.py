"""The files for containers, as far as they can be judged without an engine; the one of integration runs them."""

import re
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[3]
OURS = ("migrate", "api-1", "api-2", "worker")
MONITORING = {"prometheus", "grafana"}


@pytest.fixture(scope="module")
def services():
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]


def test_the_services_wait_for_each_other(services):
    assert set(services) == {"db", "nginx", "optuna-dashboard", *OURS, *MONITORING}
    assert services["migrate"]["depends_on"]["db"]["condition"] == "service_healthy"
    for name in ("api-1", "api-2", "worker", "optuna-dashboard"):
        assert services[name]["depends_on"]["migrate"]["condition"] == "service_completed_successfully"
    for replica in ("api-1", "api-2"):
        assert services["nginx"]["depends_on"][replica]["condition"] == "service_healthy"
    assert {name for name, service in services.items() if service.get("profiles") == ["monitoring"]} == MONITORING


def test_only_loopback_is_opened_and_never_the_database_or_a_replica(services):
    published = {name: service["ports"] for name, service in services.items() if "ports" in service}
    assert set(published) == {"nginx", "optuna-dashboard", *MONITORING}
    assert all(port.startswith("127.0.0.1:") for ports in published.values() for port in ports)


def test_nothing_is_written_but_volumes_and_tmp_and_all_that_stays_is_watched(services):
    for name, service in services.items():
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert "/tmp" in service["tmpfs"], name
        assert ("healthcheck" in service) == (name != "migrate"), name


def test_all_use_the_database_with_its_password(services):
    password = services["db"]["environment"]["POSTGRES_PASSWORD"]
    for name in OURS:
        assert services[name]["environment"]["NCCLT_STORAGE"] == f"postgresql://ncclt:{password}@db:5432/ncclt"


def test_pages_link_to_the_optuna_dashboard_of_the_same_database(services):
    dashboard = services["optuna-dashboard"]
    (port,) = dashboard["ports"]
    assert services["api-1"]["environment"]["NCCLT_OPTUNA_DASHBOARD_URL"] == f"http://{port.rpartition(':')[0]}"
    assert dashboard["command"][1].startswith(services["api-1"]["environment"]["NCCLT_STORAGE"] + "?")


def test_every_file_that_is_mounted_exists(services):
    files = [volume.split(":")[0] for service in services.values() for volume in service.get("volumes", ())]
    mounted = [name for name in files if name.startswith("./")]
    assert len(mounted) == 6
    assert all((ROOT / name).is_file() for name in mounted)


def test_prometheus_asks_each_replica_by_a_name_that_it_answers_to(services):
    jobs = yaml.safe_load((ROOT / "api/deploy/prometheus.yml").read_text(encoding="utf-8"))["scrape_configs"]
    (targets,) = [found["targets"] for found in jobs[0]["static_configs"]]
    names = [target.removesuffix(":8080") for target in targets]
    command = services["api-1"]["command"]
    allowed = [value for word, value in pairwise(command) if word == "--allow-host"]
    assert names == allowed == ["api-1", "api-2"]


@pytest.mark.parametrize("name", ["api-1", "worker"])
def test_images_run_as_nobody_special_and_copy_only_what_exists(services, name):
    build = services[name]["build"]
    text = (ROOT / build["context"] / build["dockerfile"]).read_text(encoding="utf-8")
    assert "--require-hashes" in text
    assert re.search(r"^USER ncclt$", text, re.MULTILINE)
    copied = [source for line in re.findall(r"^COPY (?!--)(.+) \S+$", text, re.MULTILINE) for source in line.split()]
    assert {"pyproject.toml", "tuner", "api", "profiles"} <= set(copied)
    assert all((ROOT / source).exists() for source in copied)
