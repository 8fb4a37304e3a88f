"""`profile model`: options and storing; what comes out is tested beside the readers."""

import json
import sys
from types import ModuleType, SimpleNamespace

import pytest
from torch import nn

from ncclt.cli.profile import model
from ncclt.errors import UsageError


@pytest.fixture(autouse=True)
def vision(monkeypatch):
    """A torchvision that knows one model."""

    def get_model(name, *, weights):
        return nn.Linear(8, 8, bias=False) if weights is None else None

    library = ModuleType("torchvision")
    library.__version__ = "1.2"
    library.models = SimpleNamespace(
        list_models=lambda: ["line"], get_model=get_model, get_model_builder=lambda name: get_model
    )
    monkeypatch.setitem(sys.modules, "torchvision", library)


def test_a_model_is_shown_and_stored_under_a_name(command):
    out = command(model, "line", "--dtype", "bf16", "--store", "mine", "--group-size", "8")
    assert "128 B" in out
    stored = command.store.workloads.get("mine")
    assert stored.messages[0].message.group_size == 8
    assert (stored.provenance.source, stored.provenance.detail["dtype"]) == ("model", "bfloat16")
    assert stored.provenance.created


def test_json_is_the_document_and_nothing_is_stored_unasked(command):
    document = json.loads(command(model, "line", "--json"))
    assert (document["name"], document["messages"][0]["size_bytes"]) == ("line", 256)
    assert "line" not in [workload.name for workload, _ in command.store.workloads.entries()]


@pytest.mark.parametrize("words", [("--store", " "), ("--group-size", "1")])
def test_options_that_make_no_sense(command, words):
    with pytest.raises(UsageError):
        command(model, "line", *words)
