"""`--sampler MODULE:CLASS(KEY=VALUE)`: what it means, and what is refused."""

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


def test_arguments_reach_the_class_and_say_how_long_it_draws_at_random():
    found = named_sampler("optuna.samplers:TPESampler(n_startup_trials=4, multivariate=True)")
    made = found.create(0)

    assert (found.name, found.startup_trials) == ("TPESampler", 4)
    assert (made._n_startup_trials, made._multivariate) == (4, True)
    assert named_sampler("optuna.samplers:TPESampler").startup_trials == 10
    assert named_sampler("optuna.samplers:RandomSampler").startup_trials == 0


def test_what_is_no_sampler_is_refused_with_a_hint(tmp_path, monkeypatch, subtests):
    cases = [
        ("tpe", "must be MODULE:CLASS or MODULE:CLASS(KEY=VALUE), not 'tpe'", "optuna.samplers:TPESampler"),
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
        ("optuna.samplers:BaseSampler", "cannot be created: TypeError", "pass the arguments"),
        ("optuna.samplers:GridSampler", "cannot be created: TypeError", "pass the arguments"),
        ("optuna.samplers:GridSampler({})", "every argument needs its name", "n_startup_trials=4"),
        ("optuna.samplers:GridSampler(**{})", "every argument needs its name", "n_startup_trials=4"),
        ("optuna.samplers:TPESampler(", "'TPESampler(' is neither CLASS nor CLASS(KEY=VALUE)", "TPESampler"),
        ("optuna.samplers:TPESampler(group=1, group=2)", "group is given twice", "once"),
        ("optuna.samplers:TPESampler()()", "is neither CLASS nor", "TPESampler"),
        ("optuna.samplers:TPE.Sampler", "is neither CLASS nor", "TPESampler"),
        (f"optuna.samplers:TPESampler(group={'(' * 999}1{')' * 999})", "is neither CLASS nor", "TPESampler"),
        ("optuna.samplers:TPESampler(n_startup=4)", "has no argument n_startup", "did you mean n_startup_trials?"),
        ("optuna.samplers:RandomSampler(popsize=4)", "has no argument popsize", "it takes none"),
        ("optuna.samplers:TPESampler(seed=4)", "the seed is not an argument here", "set --seed"),
        (
            "optuna.samplers:TPESampler(group=__import__('os').abort())",
            "the value of group is no literal: __import__('os').abort()",
            "use a number",
        ),
        ("optuna.samplers:TPESampler(n_startup_trials=-1)", "must be 0 or more, not -1", "for example"),
        ("optuna.samplers:QMCSampler(qmc_type='x')", "cannot be created: ValueError", "pass the arguments"),
    ]
    for text, said, hint in cases:
        with subtests.test(text=text, said=said, hint=hint):
            (tmp_path / "broken.py").write_text("class X(")
            classes = (f"class {name}(RandomSampler): pass\n" for name in ("ASampler", "Sampler", "Samplers"))
            (tmp_path / "near.py").write_text("".join(["from optuna.samplers import RandomSampler\n", *classes]))
            monkeypatch.syspath_prepend(tmp_path)
            with pytest.raises(UsageError) as refused:
                named_sampler(text)

            assert said in refused.value.message
            assert hint in refused.value.hint
