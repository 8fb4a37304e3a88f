"""The shipped landscapes are what their generator makes of the original tables."""

import importlib.util
import shutil
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[4] / "profiles" / "generate_landscapes.py"


@pytest.fixture
def script(monkeypatch, tmp_path):
    """The script, on a copy of the shipped tables, called with words and giving its exit status."""
    spec = importlib.util.spec_from_file_location("generate_landscapes", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.LANDSCAPES = Path(shutil.copytree(SCRIPT.parent / "landscapes", tmp_path / "landscapes"))

    def run(*words):
        monkeypatch.setattr(sys, "argv", [SCRIPT.name, *map(str, words)])
        return module.main()

    run.module = module
    return run


@pytest.mark.shared
def test_shipped_tables_are_those_of_the_generator(script, shared_data, capsys):
    folder = shared_data / "measurements"
    assert script(folder, "--check") == 0
    changed = script.module.LANDSCAPES / "h100-1x4.csv"
    whole = changed.read_bytes()
    changed.write_bytes(whole.replace(b"1187.29", b"1187.30"))
    (script.module.LANDSCAPES / "unknown.csv").touch()
    assert script(folder, "--check") == 1
    said = capsys.readouterr().err
    assert [line.split()[0] for line in said.splitlines()] == ["h100-1x4.csv", "unknown.csv"]
    assert script(folder) == 0
    assert changed.read_bytes() == whole


def test_a_check_without_the_originals_is_skipped_visibly(script, tmp_path, capsys):
    script.module.MEASUREMENTS = tmp_path / "none"
    assert script("--check") == 0
    assert "skipped" in capsys.readouterr().err


def test_a_missing_original_writes_nothing(script, tmp_path, capsys):
    before = {path: path.read_bytes() for path in script.module.LANDSCAPES.iterdir()}
    assert script(tmp_path) == 1
    assert "mi355x_rccl_2node_allreduce_grid.csv cannot be read" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in script.module.LANDSCAPES.iterdir()} == before
