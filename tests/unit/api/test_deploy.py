"""What operators load elsewhere names figures and options that exist."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from itertools import takewhile
from pathlib import Path

import pytest
import yaml
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from ncclt.cli.application import COMMANDS
from ncclt.cli.application import app as application
from ncclt_api.app import create_app

DEPLOY = Path(__file__).parents[3] / "api" / "deploy"
FIGURES = {
    *("ncclt_requests_total", "ncclt_request_seconds_bucket", "ncclt_served_total", "ncclt_database_up"),
    *("ncclt_studies", "ncclt_trials", "ncclt_recommendations", "ncclt_records"),
    *("ncclt_rollouts", "ncclt_jobs", "ncclt_jobs_waiting_seconds"),
}


def expressions():
    rules = yaml.safe_load((DEPLOY / "rules.yml").read_text())
    for rule in (rule for group in rules["groups"] for rule in group["rules"]):
        assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
        yield rule["alert"], rule["expr"]
    board = json.loads((DEPLOY / "grafana" / "ncclt.json").read_text())
    for panel in board["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


def test_the_figures_that_are_named_are_served(client):
    client.get("/v1/clusters/leonardo/env?model=bert&nodes=2&gpus_per_node=4&nccl_version=2.22.3&simulated=allow")
    served = client.get("/metrics").text
    # No roll-out or job is in these samples: a name and no value; test_revisions.py and test_jobs.py see some.
    empty = {"ncclt_rollouts", "ncclt_jobs", "ncclt_jobs_waiting_seconds"}
    assert all(re.search(rf"^# TYPE {name} (gauge|counter)$", served, re.MULTILINE) for name in empty)
    assert all(re.search(rf"^{name}\b", served, re.MULTILINE) for name in FIGURES - empty)


def test_every_expression_is_of_our_figures_and_balanced(subtests):
    for title, expression in list(expressions()):
        with subtests.test(title=title):
            named = set(re.findall(r"\b(?:ncclt_\w+)", expression))
            assert named <= FIGURES
            assert named or expression.startswith("up{")
            for opened, closed in ("()", "{}", "[]"):
                plain = re.sub(r'"[^"]*"', "", expression)
                assert plain.count(opened) == plain.count(closed), title


def test_a_stale_recommendation_is_in_the_figure_that_its_alert_reads(samples, empty_store):
    samples.fill(empty_store)
    samples.make_stale(empty_store, "0c0ffee1")
    (selector,) = set(re.findall(r"ncclt_\w+\{[^}]*\}", dict(expressions())["NccltStale"]))
    with TestClient(create_app(empty_store, fresh_s=0)) as service:
        assert f"{selector} 1.0\n" in service.get("/metrics").text


UNITS = sorted((DEPLOY / "systemd").iterdir())


def settings(path):
    """Return the settings of a unit, each with its values."""
    found = {}
    for key, value in re.findall(r"^(\w+)=(.*)$", path.read_text(), re.MULTILINE):
        found.setdefault(key, []).append(value)
    return found


def test_units_start_commands_that_exist_and_run_without_rights(subtests):
    for path in UNITS:
        with subtests.test(path=path):
            parts = re.findall(r"^\[(\w+)\]$", path.read_text(), re.MULTILINE)
            if path.suffix == ".timer":
                assert parts == ["Unit", "Timer", "Install"]
                assert path.with_suffix(".service") in UNITS
                continue
            found = settings(path)
            for start in (*found.get("ExecStartPre", ()), *found["ExecStart"]):
                program, *words = shlex.split(start)
                assert (program, words[0] in COMMANDS) == ("/opt/ncclt/bin/ncclt", True)
                options = [word for word in words if word.startswith("--")]
                text = CliRunner().invoke(application, [*takewhile(str.isalpha, words), "--help"]).stdout
                assert all(option in text for option in options if words[0] != "env"), words
            assert found["NoNewPrivileges"] == ["yes"]
            assert found.keys() & {"DynamicUser", "User"}
            # Without a timer a service starts with the machine.
            assert ("Install" in parts) == (path.with_suffix(".timer") not in UNITS)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_accepts_the_units(tmp_path):
    instances = [tmp_path / path.name.replace("@", "@bert") for path in UNITS]
    for path, instance in zip(UNITS, instances, strict=True):
        for name in {path.name, instance.name}:
            (tmp_path / name).write_text(path.read_text().replace("/opt/ncclt/bin/ncclt", sys.executable))
    environment = {**os.environ, "SYSTEMD_UNIT_PATH": f"{tmp_path}:"}
    done = subprocess.run(
        ["systemd-analyze", "verify", *instances], env=environment, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, [line for line in done.stderr.splitlines() if str(tmp_path) in line]) == (0, [])


def test_the_file_of_an_environment_is_replaced_kept_or_emptied(filled_store, tmp_path):
    found = settings(DEPLOY / "systemd" / "ncclt-env@.service")
    (start,), (after,) = found["ExecStart"], found["ExecStopPost"]
    file = tmp_path / "nccl.conf"

    def run(storage, **shape):
        options = {"cluster": "leonardo", "model": "bert", "nodes": 2, "gpus-per-node": 4, "nccl-version": "2.22.3"}
        words = [f"--{name}={value}" for name, value in (options | shape).items()]
        argv = [word.replace("${FILE}", str(file)) for word in shlex.split(start)]
        at = argv.index("$OPTIONS")
        argv[at : at + 1] = [*words, "--allow=simulated", "--format=nccl-conf"]
        environment = {**os.environ, "NCCLT_STORAGE": storage, "FILE": str(file)}
        done = subprocess.run([sys.executable, "-m", "ncclt", *argv[1:]], env=environment, timeout=240)
        environment["EXIT_STATUS"] = str(done.returncode)
        subprocess.run(shlex.split(after), env=environment, check=True, timeout=60)
        return done.returncode

    assert run(filled_store.url) == 0
    written = file.read_text()
    assert "0c0ffee1" in written
    assert run("postgresql://nobody@127.0.0.1:9/none") == 69
    assert file.read_text() == written
    assert run(filled_store.url, nodes=7) == 3
    assert file.read_text() == ""
    assert [path.name for path in tmp_path.iterdir()] == ["nccl.conf"]
