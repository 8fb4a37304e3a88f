"""What operators load elsewhere names figures and options that exist."""

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml

from ncclt.cli.application import COMMANDS

DEPLOY = Path(__file__).parents[3] / "api" / "deploy"
FIGURES = {
    "ncclt_requests_total", "ncclt_request_seconds_bucket", "ncclt_served_total", "ncclt_database_up",
    "ncclt_studies", "ncclt_trials", "ncclt_recommendations", "ncclt_records", "ncclt_rollouts",
    "ncclt_jobs", "ncclt_jobs_waiting_seconds",
    "ncclt_hook_deliveries_total", "ncclt_hook_last_success_timestamp_seconds", "ncclt_hook_oldest_undelivered_seconds",
}  # fmt: skip


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
    # No roll-out, job or hook is in these samples: a name and no value; test_life.py, test_jobs.py and test_hooks.py
    # see some.
    empty = {"ncclt_rollouts", "ncclt_jobs", "ncclt_jobs_waiting_seconds"} | {n for n in FIGURES if "_hook_" in n}
    assert all(re.search(rf"^# TYPE {name} (gauge|counter)$", served, re.MULTILINE) for name in empty)
    assert all(re.search(rf"^{name}\b", served, re.MULTILINE) for name in FIGURES - empty)


@pytest.mark.parametrize(("title", "expression"), list(expressions()), ids=lambda text: text[:30])
def test_every_expression_is_of_our_figures_and_balanced(title, expression):
    named = set(re.findall(r"\b(?:ncclt_\w+)", expression))
    assert named <= FIGURES
    assert named or expression.startswith("up{")
    for opened, closed in ("()", "{}", "[]"):
        plain = re.sub(r'"[^"]*"', "", expression)
        assert plain.count(opened) == plain.count(closed), title


def test_panels_do_not_overlap():
    places = [
        tuple(p["gridPos"].values()) for p in json.loads((DEPLOY / "grafana" / "ncclt.json").read_text())["panels"]
    ]
    assert len(set(places)) == len(places)


@pytest.mark.parametrize("path", sorted((DEPLOY / "systemd").iterdir()), ids=lambda path: path.name)
def test_units_start_commands_that_exist(path):
    text = path.read_text()
    for start in re.findall(r"^ExecStart(?:Pre)?=(.*)$", text, re.MULTILINE):
        program, command, *_ = shlex.split(start)
        assert (program, command in COMMANDS) == ("/opt/ncclt/bin/ncclt", True)
    assert "NoNewPrivileges=yes" in text
    assert re.findall(r"^\[(\w+)\]$", text, re.MULTILINE) == ["Unit", "Service", "Install"]
