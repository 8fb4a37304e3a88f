"""Reading a config.json that somebody saved."""

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclt.errors import InputError
from ncclt.profile.model.named import read_config


def test_a_configuration_is_returned_as_it_is(tmp_path):
    document = {"model_type": "bert", "num_hidden_layers": 24, "vocab_size": 250_000}
    (tmp_path / "config.json").write_text(json.dumps(document))
    assert read_config(tmp_path / "config.json") == document


def test_what_is_no_configuration_is_refused_with_the_reason(tmp_path):
    for content, reason in [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "model_type"),
        (b"{}", "model_type"),
        (b'{"model_type": 3}', "model_type"),
        (b'{"model_type": "bert", "num_hidden_layers": 1000000000}', "num_hidden_layers"),
        (b'{"model_type": "x", "text_config": {"n_layer": 1000000000}}', "n_layer"),
        (b'{"model_type": "x", "depths": [2, 1000000000]}', "depths"),
        (b" " * (1024 * 1024 + 1), "larger than 1 MiB"),
    ]:
        (tmp_path / "config.json").write_bytes(content)
        with pytest.raises(InputError, match=reason) as caught:
            read_config(tmp_path / "config.json")
        assert caught.value.hint


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        read_config(tmp_path / "no.json")


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["num_layers", "depth", "x"]), inner),
    max_leaves=8,
)


@given(content=st.binary(max_size=40) | st.dictionaries(st.sampled_from(["model_type", "n_layer", "a"]), _JSON))
def test_any_content_is_a_configuration_or_an_input_error(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("fuzz") / "config.json"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    with suppress(InputError):
        assert isinstance(read_config(path)["model_type"], str)
