"""Workloads by the name of a model, with stand-ins for the libraries that know names."""

import json
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import nn

from ncclt.core.workload import Workload
from ncclt.errors import InputError, MissingDependencyError, NotFoundError, UsageError
from ncclt.profile.model.named import ModelRequest, Sharding, build_model_workload
from ncclt.testing.reader_contract import message_table


class Config:
    def __init__(self, layers=2):
        self.layers = layers

    @classmethod
    def from_dict(cls, document):
        return cls(document["num_layers"])


class PreTrainedModel(nn.Module):
    config_class = Config
    _no_split_modules = ("Layer",)

    def __init__(self, config):
        super().__init__()
        if config.layers == 0:
            raise ValueError("no layers\nat all")
        self.layers = nn.ModuleList(Layer() for _ in range(config.layers))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(512, 512, bias=False)


class TinyForPreTraining(PreTrainedModel):
    def __init__(self, config):
        super().__init__(config)
        self.head = nn.Linear(512, 2, bias=False)


class Widths(nn.Module):
    """Reads a number out of a sequence, as RegNet does."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(int(torch.arange(5)[-1].item()), 4, bias=False)


def _library(name, **members):
    library = ModuleType(name)
    library.__version__ = "1.2"
    for key, value in members.items():
        setattr(library, key, value)
    return library


def _vision(models):
    def get_model(name, *, weights, weights_backbone=None):
        assert weights is weights_backbone is None
        return models[name]()

    return SimpleNamespace(
        list_models=lambda: list(models), get_model=get_model, get_model_builder=lambda name: get_model
    )


@pytest.fixture
def libraries(monkeypatch):
    """Three small libraries, whatever is installed."""
    conv = {"net": lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)), "widths": Widths}
    vision = _library("torchvision", models=_vision(conv))
    transformers = _library(
        "transformers",
        CONFIG_MAPPING={"tiny": Config},
        AutoModel=SimpleNamespace(from_config=lambda config, trust_remote_code: PreTrainedModel(config)),
        PreTrainedModel=PreTrainedModel,
        TinyForPreTraining=TinyForPreTraining,
        Config=Config,
    )
    timm = _library(
        "timm",
        is_model=lambda name: name in ("net", "vit"),
        list_models=lambda: ["net", "vit"],
        create_model=lambda name, pretrained: nn.Linear(4, 4) if not pretrained else None,
    )
    for library in (vision, transformers, timm):
        monkeypatch.setitem(sys.modules, library.__name__, library)


def _workload(model, **options):
    return build_model_workload(ModelRequest(model=model, **options), name="w", created="2026-01-02")


_rows = message_table


@pytest.mark.usefixtures("libraries")
class TestWithLibraries:
    def test_ddp_sends_gradients_and_buffers(self):
        workload = _workload("net", dtype="bf16", group_size=4)
        gradients = 8 * 3 * 9 + 8 + 8 + 8
        assert _rows(workload) == {
            ("all_reduce", "bfloat16", 2 * gradients, 4): 1,
            ("broadcast", "bfloat16", 2 * 16, 4): 1,
            ("broadcast", "int64", 8, 4): 1,
        }
        assert workload.provenance.detail["library"] == "torchvision 1.2"
        assert workload.provenance.detail["parameters"] == str(gradients)
        assert Workload.from_document(workload.to_document()) == workload

    def test_bucket_cap_splits(self):
        assert len(_workload("tiny").messages) == 1
        rows = _rows(_workload("tiny", bucket_cap_mb=1))
        assert rows == {("all_reduce", "float32", 1024 * 1024, 0): 2}

    def test_fsdp_wraps_the_layers(self):
        rows = _rows(_workload("TinyForPreTraining", sharding=Sharding.FSDP, dtype="bf16", reduce_dtype="fp32"))
        layer, root = 512 * 512, 1024
        assert rows == {
            ("all_gather", "bfloat16", 2 * layer, 0): 4,
            ("all_gather", "bfloat16", 2 * root, 0): 1,
            ("reduce_scatter", "float32", 4 * layer, 0): 2,
            ("reduce_scatter", "float32", 4 * root, 0): 1,
        }

    def test_zero3_gathers_parameters(self):
        rows = _rows(_workload("tiny", sharding=Sharding.ZERO3, dtype="fp16"))
        layer = 512 * 512
        assert rows == {("all_gather", "float16", 2 * layer, 0): 4, ("reduce_scatter", "float16", 4 * layer, 0): 1}

    def test_a_library_can_be_named(self):
        assert _workload("timm:net").provenance.detail["library"] == "timm 1.2"
        assert _workload("vit").provenance.detail["library"] == "timm 1.2"
        with pytest.raises(NotFoundError):
            _workload("timm:tiny")

    def test_a_constructor_that_reads_numbers_gets_them(self):
        assert _rows(_workload("widths")) == {("all_reduce", "float32", 64, 0): 1}

    def test_a_local_configuration_gives_the_shape_and_the_class(self, tmp_path):
        path = tmp_path / "config.json"
        path.write_text(json.dumps({"model_type": "tiny", "num_layers": 3, "architectures": ["TinyForPreTraining"]}))
        assert _workload("mine", config=path).provenance.detail["parameters"] == str(3 * 512 * 512 + 1024)
        assert _workload("PreTrainedModel", config=path).provenance.detail["parameters"] == str(3 * 512 * 512)
        path.write_text(json.dumps({"model_type": "huge"}))
        with pytest.raises(NotFoundError, match="huge"):
            _workload("mine", config=path)

    def test_what_cannot_be_built_says_why(self, tmp_path):
        path = tmp_path / "config.json"
        path.write_text(json.dumps({"model_type": "tiny", "num_layers": 0}))
        with pytest.raises(UsageError, match=r"no layers$"):
            _workload("mine", config=path)

    def test_unknown_names_say_how(self):
        for name, error, hint in [
            ("tiny-base-uncased", NotFoundError, "did you mean tiny"),
            ("someone/tiny", UsageError, "--config config.json"),
            ("hub:tiny", UsageError, "torchvision"),
            ("Config", NotFoundError, "--config"),
            ("../net", UsageError, "--config"),
        ]:
            with pytest.raises(error) as caught:
                _workload(name)
            assert hint in caught.value.hint

    def test_options_that_make_no_sense(self):
        for options in [
            {"group_size": 1},
            {"group_size": -2},
            {"bucket_cap_mb": 0},
            {"bucket_cap_mb": float("nan")},
            {"dtype": "int8"},
            {"dtype": "bf16", "reduce_dtype": "fp32"},
        ]:
            with pytest.raises(UsageError):
                _workload("net", **options)

    def test_an_unknown_dtype_is_named(self):
        with pytest.raises(InputError, match="fp12"):
            _workload("net", dtype="fp12")


def test_without_the_libraries_the_error_says_what_to_install(libraries, monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(MissingDependencyError, match="timm is not installed: pip install timm"):
        _workload("unknown")
    assert _workload("net").messages
    with pytest.raises(MissingDependencyError):
        _workload("timm:net")
