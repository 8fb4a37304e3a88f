"""`--sampler MODULE:CLASS`: what it means, and what is refused."""

import optuna
import pytest

from ncclt.errors import UsageError
from ncclt.search.named_sampler import named_sampler


def test_a_class_of_optuna_is_made_with_the_seed():
    found = named_sampler("optuna.samplers:TPESampler")
    drawn = [optuna.create_study(sampler=found.create(seed)).ask().suggest_float("x", 0, 1) for seed in (1, 1, 2)]

    assert found.name == "TPESampler"
    assert drawn[0] == drawn[1] != drawn[2]
    assert named_sampler("") is None


def test_a_class_of_another_package_needs_no_seed(tmp_path, monkeypatch):
    (tmp_path / "elsewhere.py").write_text(
        "import optuna\nclass Mine(optuna.samplers.RandomSampler):\n    def __init__(self): super().__init__(3)"
    )
    monkeypatch.syspath_prepend(tmp_path)

    assert type(named_sampler("elsewhere:Mine").create(5)).__name__ == "Mine"


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        ("tpe", "must be MODULE:CLASS, not 'tpe'", "optuna.samplers:TPESampler"),
        (":TPESampler", "must be MODULE:CLASS", "optuna.samplers:TPESampler"),
        ("optuna.samplers:", "must be MODULE:CLASS", "optuna.samplers:TPESampler"),
        ("no.such.module:X", "no.such.module cannot be imported: ModuleNotFoundError", "PYTHONPATH"),
        (".relative:X", "cannot be imported: TypeError", "PYTHONPATH"),
        ("broken:X", "cannot be imported: SyntaxError", "PYTHONPATH"),
        ("optuna.samplers:TPESampeler", "has no TPESampeler", "did you mean optuna.samplers:TPESampler?"),
        ("near:Smpler", "has no Smpler", "did you mean near:Sampler?"),
        ("json:Nothing", "has no Nothing", "no sampler"),
        ("json:JSONDecoder", "JSONDecoder is no class derived from optuna.samplers.BaseSampler", "TPESampler"),
        ("json:loads", "loads is no class derived", "TPESampler"),
        ("optuna.samplers:BaseSampler", "cannot be made: TypeError", "without arguments"),
        ("optuna.samplers:GridSampler", "cannot be made: TypeError", "without arguments"),
        ("ncclt.search.sampler:PolicySampler", "cannot be made: TypeError", "without arguments"),
    ],
)
def test_what_is_no_sampler_is_refused_with_a_hint(text, said, hint, tmp_path, monkeypatch):
    (tmp_path / "broken.py").write_text("class X(")
    classes = (f"class {name}(RandomSampler): pass\n" for name in ("ASampler", "Sampler", "Samplers"))
    (tmp_path / "near.py").write_text("".join(["from optuna.samplers import RandomSampler\n", *classes]))
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError) as refused:
        named_sampler(text)

    assert said in refused.value.message
    assert hint in refused.value.hint
