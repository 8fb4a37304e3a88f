"""Classes by name: built-in ones, and those of third parties, of which some may be broken."""

import sys
from importlib.metadata import EntryPoint
from types import SimpleNamespace

import pytest

from ncclt import class_table
from ncclt.class_table import ClassTable
from ncclt.errors import MissingDependencyError, UsageError

TABLE = ClassTable(kind="launcher", group="ncclt.launchers", built_in={"local": "ncclt.launch.local:LocalLauncher"})


@pytest.fixture
def third_party(monkeypatch, tmp_path):
    """A good class, one that would replace a built-in one, and two that cannot be imported."""
    class_table._report.cache_clear()
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "broken_plugin.py").write_text("raise RuntimeError('no licence')\n")
    module = SimpleNamespace(Good=object())
    monkeypatch.setitem(sys.modules, "good_plugin", module)
    values = {
        "good": "good_plugin:Good",
        "local": "good_plugin:Good",
        "broken": "broken_plugin:X",
        "gone": "no_such_module:X",
    }
    points = [EntryPoint(name=name, value=value, group=TABLE.group) for name, value in values.items()]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda *, group: points if group == TABLE.group else [])
    return module.Good


def test_third_parties_add_names_and_replace_none(third_party):
    assert TABLE.names() == ("local", "broken", "gone", "good")
    assert TABLE.load("good") is third_party
    assert TABLE.load("local").name == "local"
    with pytest.raises(UsageError, match="unknown launcher 'lokal'") as caught:
        TABLE.load("lokal")
    assert "local, broken, gone, good" in caught.value.hint


def test_a_broken_one_is_reported_once_and_skipped(third_party, capsys):
    for _ in range(2):
        assert dict(TABLE.load_third_party()) == {"good": third_party}
    broken, gone = capsys.readouterr().err.splitlines()
    assert "launcher 'broken'" in broken
    assert "RuntimeError: no licence" in broken
    assert "launcher 'gone'" in gone


@pytest.mark.usefixtures("third_party")
def test_a_broken_one_is_an_error_where_it_was_asked_for():
    for name, value in (("broken", "broken_plugin:X"), ("gone", "no_such_module:X")):
        with pytest.raises(MissingDependencyError, match=f"launcher '{name}' of a third party") as caught:
            TABLE.load(name)
        assert value in caught.value.hint
