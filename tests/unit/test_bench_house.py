"""bench/house.py on a small house counted by hand."""

import graphlib
import json
import runpy
from pathlib import Path

import grimp
import pytest

pytestmark = pytest.mark.docs

BENCH = runpy.run_path(str(Path(__file__).parents[2] / "bench" / "house.py"))

HOUSE = {
    "tuner/ncclt/__init__.py": "",
    "tuner/ncclt/cli/__init__.py": "",
    "tuner/ncclt/cli/application.py": (
        "import typer\n\napp = typer.Typer()\napp.add_typer(below := typer.Typer(), name='below')\n"
        "@app.command()\ndef first(name: str, one: bool = False, two: int = 2): ...\n"
        "@app.command()\ndef env(): ...\n"
        "@below.command()\ndef second(three: str = ''): ...\n"
        "@below.command()\ndef third(): ...\n"
    ),
    "tuner/ncclt/cli/env.py": (
        "import argparse\n\ndef parser():\n    made = argparse.ArgumentParser()\n"
        "    made.add_argument('--four', '-4')\n    made.add_argument('words')\n    return made\n"
    ),
    "tuner/ncclt/core/__init__.py": "",
    "tuner/ncclt/core/first.py": (
        '"""Which is a question."""\nfrom ncclt.core import second\n\n'
        'class Row:\n    """Return what is not a noun."""\n\n    def _used_once(self): ...\n\n'
        "    def use(self):\n        self._used_once()\n        _twice(), _twice()\n\ndef _twice(): ...\n"
    ),
    "tuner/ncclt/core/second.py": (
        "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from ncclt.long import Long\n\n"
        "def many(a, b, c, d, e, f, *, g):\n    from ncclt.core.first import Row\n\nclass Row:\n    pass\n"
    ),
    "tuner/ncclt/launch/__init__.py": (
        "LAUNCHERS: dict[str, str] = {'slurm': 'ncclt.launch.slurm', 'ssh': 'ncclt.launch.ssh'}\n"
        "if __name__ == 'slurm': ...\n"
    ),
    "tuner/ncclt/long.py": (
        "import ncclt_api\nfrom ncclt_api.app import create\nTABLE = {1:2}  # fmt: skip\n"
        "TEXT = '# fmt: skip'\n'''How long a constant is.'''\n"
        "def compare(name):\n    return name in ('ssh', 'x') or 'slurm' != name or name == 'other'\n"
        "def choose(name):\n    match name:\n        case 'slurm': return {'ssh': 1, 'slurm': 2}\n"
    ),
    "tuner/script.py": "other = 1\n",
    "api/ncclt_api/__init__.py": (
        "from ncclt.long import compare\n\nclass Long:\n    def use(self, a, b, c, d, e, f): ...\n"
    ),
}
CODE_LINES = 46  # counted by hand, without blank lines and docstrings


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    folder = tmp_path_factory.mktemp("house")
    for name, text in HOUSE.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_every_figure_is_counted(house, capsys):
    BENCH["main"](["--root", str(house), "--json"])
    rows = json.loads(capsys.readouterr().out)["rows"]

    assert {row["figure"]: row["now"] for row in rows} == {
        "modules": 11,
        "classes": 3,
        "code lines": CODE_LINES,
        "test lines per code line, %": 0,
        "bench lines": 0,
        "vague locals per 1,000 code lines": 65.2,
        "functions > 60 lines": 0,
        "leaf commands": 4,
        "options": 4,
        "launcher names compared outside launch/": 4,
        "question-word docstrings": 3,
        "fmt: skip": 1,
        "private functions used once, %": 8.3,  # 1 of 12
        "functions > 6 parameters": 1,
    }
    assert [row["target"] for row in rows] == list(BENCH["TARGETS"].values())


def test_figures_above_their_target_are_marked(house, capsys):
    BENCH["main"](["--root", str(house)])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if line.endswith("above")] == ["vague", "launcher", "question-word"]


def test_items_of_a_row_are_listed(house, capsys):
    BENCH["main"](["--root", str(house), "--list", "functions > 6 "])
    assert capsys.readouterr().out == "tuner/ncclt/core/second.py:6 many 7\n"


def test_growth_above_the_limit_fails(tmp_path, capsys):
    module = tmp_path / "tuner/ncclt/row.py"
    page = tmp_path / "docs/internals/size.md"
    for path, text in (
        (module, '"""Docstring."""\n\n# Comment.\nA = 1\nB = [\n    A,\n]\n'),
        (page, "**4 code lines**"),
    ):
        path.parent.mkdir(parents=True)
        path.write_text(text)
    BENCH["main"](["--root", str(tmp_path), "--ratchet"])
    module.write_text(module.read_text() + "C = 2\n")
    with pytest.raises(SystemExit, match=r"^5 code lines in tuner/ and api/, 1 more than"):
        BENCH["main"](["--root", str(tmp_path), "--ratchet"])
    page.write_text("no number")
    with pytest.raises(SystemExit, match="names no limit"):
        BENCH["main"](["--root", str(tmp_path), "--ratchet"])


@pytest.mark.parametrize(("options", "message"), [(["--root", "."], "no tuner/ncclt"), (["--list", "x"], "no row")])
def test_mistakes_are_refused(tmp_path, monkeypatch, capsys, house, options, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        BENCH["main"](["--root", str(house), *options])
    assert end.value.code == 2
    assert message in capsys.readouterr().err


@pytest.fixture(scope="module")
def product():
    return BENCH["read_modules"](Path(__file__).parents[2])


def test_a_class_name_has_one_owner_in_the_product(product):
    assert {name: places for name, places in BENCH["find_class_owners"](product).items() if len(places) > 1} == {}


def test_no_modules_of_the_product_import_each_other():
    graph = grimp.build_graph("ncclt", "ncclt_api", exclude_type_checking_imports=True, cache_dir=None)
    imports = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    graphlib.TopologicalSorter(imports).prepare()  # raises CycleError
