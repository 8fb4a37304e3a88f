"""The workloads in profiles/workloads: up to date, valid, and equal to what PyTorch's own models give."""

import importlib.util
import json
import math
import sys
from pathlib import Path

import jsonschema
import pytest

from ncclt.core.workload import Workload

PROFILES = Path(__file__).resolve().parents[3] / "profiles"
FILES = sorted((PROFILES / "workloads").glob("*.json"))
NAMES = {"bert", "bert-large", "gpt2", "llama-7b", "nasnetmobile", "nasnetmobile-unfused", "resnet101", "vit-l-32"}
# Key in expected_models.json of each DDP workload.
MODELS = {
    "bert": "bert-base BertModel fp32",
    "bert-large": "bert-large BertModel fp32",
    "gpt2": "gpt2 LMHead fp32",
    "resnet101": "resnet101 fp32",
    "vit-l-32": "vit_l_32 fp32",
}


@pytest.fixture(scope="module")
def generator():
    """Load the committed script, with the folder in which it finds its shapes."""
    sys.path.insert(0, str(PROFILES))
    try:
        spec = importlib.util.spec_from_file_location("generate_workloads", PROFILES / "generate_workloads.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module
    finally:
        sys.path.remove(str(PROFILES))


def _document(name):
    return json.loads((PROFILES / "workloads" / f"{name}.json").read_text())


def _bytes(name, collective):
    rows = [r for r in _document(name)["messages"] if r["collective"] == collective]
    return sum(r["size_bytes"] * r["calls_per_step"] for r in rows)


def test_all_models_are_shipped():
    """By the names of `--model`."""
    assert {path.stem for path in FILES} == NAMES


def test_file_is_valid_and_reads_back():
    """Against the schema, and through the core both ways."""
    for path in FILES:
        document = json.loads(path.read_text())
        schema = json.loads((PROFILES / "workload.schema.json").read_text())
        jsonschema.Draft202012Validator.check_schema(schema)
        jsonschema.validate(document, schema, cls=jsonschema.Draft202012Validator)
        workload = Workload.from_document(document)
        assert workload.name == path.stem
        assert workload.to_document() == document


def test_schema_refuses_what_the_core_refuses():
    """A size of 0, an unknown collective, a field too many."""
    schema = json.loads((PROFILES / "workload.schema.json").read_text())
    for change in ({"size_bytes": 0}, {"collective": "gather"}, {"size": 4}, {"calls_per_step": 0}):
        document = _document("bert")
        document["messages"][0].update(change)
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(document, schema)


def test_files_are_what_the_script_writes(generator, capsys):
    """`--check` is the same comparison as in the pipeline."""
    assert generator.main(["--check"]) == 0, capsys.readouterr().err


def test_check_names_a_stale_file(generator, monkeypatch, tmp_path, capsys):
    """Writing makes it pass again; a file of no model is named as well."""
    monkeypatch.setattr(generator, "WORKLOADS", tmp_path / "workloads")
    assert generator.main([]) == 0
    assert generator.main(["--check"]) == 0
    (tmp_path / "workloads" / "bert.json").write_text("{}")
    (tmp_path / "workloads" / "stray.json").write_text("{}")
    capsys.readouterr()
    assert generator.main(["--check"]) == 1
    assert capsys.readouterr().err.split() == ["differs:", "bert.json", "differs:", "stray.json"]


@pytest.mark.shared
def test_buckets_are_those_of_the_real_model(shared_data):
    """Sizes, number and bytes of the buckets, parameters, and the buffers that DDP broadcasts."""
    for name in sorted(MODELS):
        model = json.loads((shared_data / "traces" / "expected_models.json").read_text())[MODELS[name]]
        document = _document(name)
        sizes = []
        for row in document["messages"]:
            if row["collective"] == "all_reduce":
                sizes += [row["size_bytes"]] * int(row["calls_per_step"])
        assert sorted(sizes) == sorted(model["ddp_buckets_in_order"])
        assert document["provenance"]["detail"]["parameters"] == str(model["params"])
        assert document["provenance"]["detail"]["tensors"] == str(model["tensors"])
        assert _bytes(name, "broadcast") == model["buffers_bytes"]


def test_buckets_come_in_the_order_of_the_real_model(generator, shared_data):
    """The order of the shapes is that of the model, so the buckets are built from the same tensors."""
    from ncclt.profile.model.workload import ddp_messages

    models = json.loads((shared_data / "traces" / "expected_models.json").read_text())
    shapes = generator.transformers.bert(width=1024, layers=24)
    first_seen = [m.message.size_bytes for m in ddp_messages(shapes, "float32")]
    assert first_seen == list(dict.fromkeys(models[MODELS["bert-large"]]["ddp_buckets_in_order"]))


def test_nasnet_has_the_parameters_of_keras(generator):
    """5,289,978 trainable elements in 742 tensors; its batch norms keep 36,738 more that are not trained."""
    shapes = generator.nasnet.nasnet_mobile()
    assert (sum(math.prod(s) for _n, s in shapes), len(shapes)) == (5_289_978, 742)
    assert 2 * sum(shape[0] for name, shape in shapes if name.endswith("/gamma")) == 5_326_716 - 5_289_978
    assert len({name for name, _shape in shapes}) == 742


def test_unfused_nasnet_sends_the_same_bytes_in_742_calls():
    """That is where the paper found its largest gain."""
    rows = _document("nasnetmobile-unfused")["messages"]
    assert sum(row["calls_per_step"] for row in rows) == 742
    assert _bytes("nasnetmobile-unfused", "all_reduce") == _bytes("nasnetmobile", "all_reduce") == 21_159_912


def test_llama_is_gathered_layer_by_layer(generator):
    """Layer 202,383,360 and root 262,148,096 parameters; bfloat16 gathered, float32 reduced."""
    rows = {(r["collective"], r["size_bytes"]): r["calls_per_step"] for r in _document("llama-7b")["messages"]}
    layer, root = 202_383_360, 262_148_096
    assert rows == {
        ("all_gather", 2 * layer): 64,
        ("all_gather", 2 * root): 1,
        ("reduce_scatter", 4 * layer): 32,
        ("reduce_scatter", 4 * root): 1,
    }
    assert _document("llama-7b")["provenance"]["detail"]["parameters"] == str(32 * layer + root)
