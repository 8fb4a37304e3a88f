"""The same against the real libraries, where they are installed: buckets of expected_models.json."""

import json
from collections import Counter

import pytest

from ncclt.profile.model.named import ModelRequest, Sharding, build_model_workload

LARGE = {
    "model_type": "bert",
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
}
CASES = [
    ("torchvision", "resnet18", "bf16", "resnet18 bf16"),
    ("torchvision", "resnet50", "fp32", "resnet50 fp32"),
    ("torchvision", "vit_l_32", "fp32", "vit_l_32 fp32"),
    ("timm", "timm:resnet101", "fp32", "resnet101 fp32"),
    ("transformers", "bert", "fp32", "bert-base BertModel fp32"),
    ("transformers", "BertForPreTraining", "fp32", "bert-base ForPreTraining fp32"),
    ("transformers", "GPT2LMHeadModel", "fp32", "gpt2 LMHead fp32"),
]


def _expected(shared_data):
    return json.loads((shared_data / "traces" / "expected_models.json").read_text())


def _buckets(workload):
    rows = [m for m in workload.messages if m.message.collective == "all_reduce"]
    return Counter({m.message.size_bytes: int(m.calls_per_step) for m in rows})


@pytest.mark.shared
@pytest.mark.parametrize(("library", "model", "dtype", "key"), CASES, ids=[case[1] for case in CASES])
def test_buckets_are_those_of_the_public_table(shared_data, library, model, dtype, key):
    pytest.importorskip(library)
    expected = _expected(shared_data)[key]
    workload = build_model_workload(ModelRequest(model=model, dtype=dtype), name="w", created="")
    assert _buckets(workload) == Counter(expected["ddp_buckets_in_order"])
    assert workload.provenance.detail["parameters"] == str(expected["params"])


@pytest.mark.shared
def test_a_local_configuration_gives_bert_large(shared_data, tmp_path):
    pytest.importorskip("transformers")
    (tmp_path / "config.json").write_text(json.dumps(LARGE))
    request = ModelRequest(model="BertForMaskedLM", config=tmp_path / "config.json")
    workload = build_model_workload(request, name="w", created="")
    assert _buckets(workload) == Counter(_expected(shared_data)["bert-large MaskedLM fp32"]["ddp_buckets_in_order"])


@pytest.mark.shared
def test_llama_is_gathered_layer_by_layer(shared_data):
    pytest.importorskip("transformers")
    facts = _expected(shared_data)["llama-7b FSDP per-layer"]
    request = ModelRequest(model="LlamaForCausalLM", dtype="bf16", sharding=Sharding.FSDP)
    rows = {
        (m.message.collective.value, m.message.size_bytes): m.calls_per_step
        for m in build_model_workload(request, name="w", created="").messages
    }
    layer, root = 2 * facts["layer_params"], 2 * facts["root_params"]
    assert rows == {
        ("all_gather", layer): 64,
        ("all_gather", root): 1,
        ("reduce_scatter", layer): 32,
        ("reduce_scatter", root): 1,
    }
