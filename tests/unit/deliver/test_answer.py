"""Where an offer comes from, and what a server's refusal becomes."""

import json
from dataclasses import replace

import pytest
from answering_server import PROBLEM, reply, serving

from ncclt.cli.env import main as env
from ncclt.core.recommendation import Request
from ncclt.deliver.answer import AnswerSource, request_answer
from ncclt.deliver.render.formats import render
from ncclt.errors import NoRecommendationError, ServerError, StaleRecommendationError, UsageError
from ncclt.testing.samples import sample_recommendation


@pytest.mark.parametrize(
    ("status", "kind", "code"),
    [
        (404, NoRecommendationError, 3),
        (409, NoRecommendationError, 3),
        (410, StaleRecommendationError, 3),
        (422, UsageError, 2),
        (401, ServerError, 69),
        (500, ServerError, 69),
    ],
)
def test_env_and_run_see_the_same_error(status, kind, code, capsys, monkeypatch, tmp_path):
    """A refused request is the user's mistake on both ways."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    answer = reply(status, json.dumps({**PROBLEM, "status": status}), "application/problem+json")
    request = Request(cluster="leonardo", model="bert", nodes=2, gpus_per_node=4, nccl_version="2.22.3")
    with serving(answer) as server:
        with pytest.raises(kind, match="nothing fits") as caught:
            request_answer(request, AnswerSource(server=server.url, timeout_s=60.0), from_cache=False, warn=print)
        assert type(caught.value) is kind
        words = ("--cluster", "leonardo", "--model", "bert", "--nodes", "2", "--gpus-per-node", "4")
        assert env([*words, "--nccl-version", "2.22.3", "--server", server.url]) == code
    assert "ncclt: nothing fits\n  hint: run tune" in capsys.readouterr().err


def test_env_names_what_the_server_recorded_or_simulated_where_eval_hides_comments(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    fingerprint = sample_recommendation("r").fingerprint
    words = ["--cluster", "pair", "--model", "toy", "--nodes", str(fingerprint.nodes)]
    words += ["--gpus-per-node", str(fingerprint.gpus_per_node), "--nccl-version", str(fingerprint.nccl_version)]
    recorded = {"launcher": "replay", "recorded": "recorded: box, site"}
    for change, label in (({"simulated": True}, "SIMULATED: "), (recorded, "recorded: box, site: "), ({}, "warning: ")):
        known = replace(sample_recommendation("r"), **{"simulated": False, "launcher": "local", **change})
        with serving(reply(200, render(known, format="json"))) as server:
            assert env([*words, "--server", server.url]) == 0
        said = capsys.readouterr().err
        labels = [word for word in ("SIMULATED: ", "recorded: ") if f"ncclt: {word}" in said]
        assert said.startswith(f"ncclt: {label}"), said
        assert len(labels) == (label != "warning: ")
