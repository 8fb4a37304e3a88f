"""bench/house.py on a house that is easily counted."""

import json
import runpy
from pathlib import Path

import pytest

BENCH = runpy.run_path(str(Path(__file__).parents[2] / "bench" / "house.py"))

HOUSE = {
    "tuner/ncclt/__init__.py": "",
    "tuner/ncclt/cli/__init__.py": "def main():\n    import ncclt.core.first\n    import sys\n    sys.exit(3)\n",
    "tuner/ncclt/core/__init__.py": "",
    "tuner/ncclt/core/first.py": "from ncclt.core import second\n\nclass Row:\n    pass\n",
    "tuner/ncclt/core/second.py": (
        "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from ncclt.long import Long\n\n"
        "def many(a, b, *, c):\n    from ncclt.core.first import Row\n\nclass Row:\n    pass\n"
    ),
    "tuner/ncclt/long.py": "# much\n" * 400 + "class Long:\n    pass\n",
    "api/ncclt_api/__init__.py": "from ncclt.long import Long\n",
}


@pytest.fixture
def house(tmp_path):
    for name, text in HOUSE.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_every_figure_by_hand(house, capsys):
    BENCH["main"](["--root", str(house), "--json"])
    found = {row["figure"]: row["now"] for row in json.loads(capsys.readouterr().out)["rows"]}

    expected = {
        "files": 7,
        "lines": 4 + 4 + 10 + 402 + 1,
        "lines of ncclt": 4 + 4 + 10 + 402,
        "classes": 3,
        "class names with two owners": 1,
        "... within core": 1,
        "... within measure": 0,
        "... within these four": 1,
        "one-importer fragments": 1,  # second; first has two importers, and long is none
        "longest parameter list 1": "3 ncclt.core.second.many",
        "files above 400 lines": 1,
        "entries of tuner/ncclt": 4,
        "import circles": 1,
        "entered by ncclt env": 2,
        "entered by ncclt run": 2,
    }
    assert {name: found[name] for name in expected} == expected


def test_it_is_printed_beside_what_it_was(house, capsys):
    BENCH["main"](["--root", str(house)])
    (files,) = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("files  ")]
    assert files == ["files", str(BENCH["BEFORE"]["files"]), "7"]


def test_a_folder_without_the_product_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        BENCH["main"](["--root", str(tmp_path)])
    assert end.value.code == 2
    assert "no tuner/ncclt" in capsys.readouterr().err


def test_names_with_two_owners_are_listed(house, capsys):
    BENCH["main"](["--root", str(house), "--list"])
    assert capsys.readouterr().out == "Row ncclt.core.first ncclt.core.second\n"


@pytest.fixture(scope="module")
def product():
    return BENCH["modules_of"](Path(__file__).parents[2])


def test_a_class_name_has_one_owner_in_the_product(product):
    trees = {name: tree for name, (_, tree, _) in product.items()}
    assert {name: places for name, places in BENCH["owners_of"](trees).items() if len(places) > 1} == {}


def test_no_modules_of_the_product_import_each_other(product):
    graph = {name: BENCH["imported"](name, path, tree, product) for name, (path, tree, _) in product.items()}
    assert BENCH["circles"](graph) == []
