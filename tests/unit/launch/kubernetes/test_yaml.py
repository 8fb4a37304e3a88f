"""What is written as YAML is read back as it was."""

import yaml
from hypothesis import given
from hypothesis import strategies as st

from ncclt.launch.kubernetes.yaml import to_yaml

# PyYAML, as kubectl, takes no lone surrogates; no file has any.
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
lines = st.lists(st.sampled_from(["", "a", " b", "c: d", "# e", "\tf", "- g", "µ "]), max_size=6).map("\n".join)
scalars = st.one_of(text, lines, st.integers(-1000, 1000), st.booleans(), st.sampled_from(["yes", "null", "1e3", "~"]))
nodes = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(text, inner, max_size=4)),
    max_leaves=12,
)


@given(st.lists(st.dictionaries(text, nodes, min_size=1, max_size=4), min_size=1, max_size=3))
def test_everything_comes_back(documents):
    assert list(yaml.safe_load_all(to_yaml(documents))) == documents


def test_people_can_read_it():
    document = {"kind": "ConfigMap", "data": {"w.py": "import os\n\nprint(1)\n"}, "list": [{"a": 1, "b": True}, [], {}]}
    assert to_yaml([document]) == (
        "kind: ConfigMap\ndata:\n  w.py: |\n    import os\n\n    print(1)\n"
        "list:\n  - a: 1\n    b: true\n  - []\n  - {}\n"
    )
