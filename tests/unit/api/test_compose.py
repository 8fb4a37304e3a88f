"""The files for containers, as far as they can be judged without an engine."""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def services():
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]


def test_the_four_services_wait_for_each_other(services):
    assert set(services) == {"db", "migrate", "api", "tuner"}
    assert services["migrate"]["depends_on"]["db"]["condition"] == "service_healthy"
    for name in ("api", "tuner"):
        assert services[name]["depends_on"]["migrate"]["condition"] == "service_completed_successfully"


def test_every_command_is_ours(services):
    commands = {name: service["command"] for name, service in services.items() if name != "db"}
    assert commands == {
        "migrate": ["ncclt", "store", "migrate"],
        "api": ["ncclt", "serve", "--host", "0.0.0.0", "--insecure-no-auth"],
        "tuner": ["ncclt", "tune", "--model", "bert", "--nodes", "2", "--launcher", "simulate"],
    }


def test_only_loopback_is_opened_and_never_the_database(services):
    assert services["api"]["ports"] == ["127.0.0.1:8080:8080"]
    assert "ports" not in services["db"]


def test_all_use_the_database_with_its_password(services):
    password = services["db"]["environment"]["POSTGRES_PASSWORD"]
    for name in ("migrate", "api", "tuner"):
        assert services[name]["environment"]["NCCLT_STORAGE"] == f"postgresql://ncclt:{password}@db:5432/ncclt"


@pytest.mark.parametrize("name", ["api", "tuner"])
def test_images_run_as_nobody_special_and_copy_only_what_exists(services, name):
    build = services[name]["build"]
    text = (ROOT / build["context"] / build["dockerfile"]).read_text(encoding="utf-8")
    assert "--require-hashes" in text
    assert re.search(r"^USER ncclt$", text, re.MULTILINE)
    copied = [source for line in re.findall(r"^COPY (?!--)(.+) \S+$", text, re.MULTILINE) for source in line.split()]
    assert {"pyproject.toml", "tuner", "api", "profiles"} <= set(copied)
    assert all((ROOT / source).exists() for source in copied)


def test_the_service_comes_without_torch():
    assert "torch==" not in (ROOT / "api" / "Dockerfile").read_text(encoding="utf-8")
