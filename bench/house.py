"""How large the product is and how it hangs together, beside what it was at commit d73c139.

    python bench/house.py [--root FOLDER] [--json | --list]

Read off the syntax trees of tuner/ncclt and api/ncclt_api; only the last two rows start `ncclt env` and `ncclt run`,
against an empty store, and count the first-level packages and modules of ncclt that they load.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

PRODUCT = ("tuner/ncclt", "api/ncclt_api")
FRAGMENT_LINES, LONG_LINES = 40, 400
OWNED = ("core", "measure", "prove", "deliver")
"""Packages in which a class name has one owner."""

BEFORE: dict[str, Any] = {
    "files": 409,
    "lines": 53002,
    "lines of ncclt": 50102,
    "classes": 486,
    "class names with two owners": 35,
    "... within core": 2,
    "... within measure": 0,
    "... within prove": 0,
    "... within deliver": 0,
    "... within these four": 4,
    "one-importer fragments": 12,
    "longest parameter list 1": "47 ncclt.cli.tune.tune",
    "longest parameter list 2": "32 ncclt.cli.preflight.preflight",
    "longest parameter list 3": "28 ncclt.cli.check.check",
    "longest parameter list 4": "22 ncclt.cli.verify.verify",
    "longest parameter list 5": "17 ncclt.cli.doctor.doctor",
    "files above 400 lines": 0,
    "entries of tuner/ncclt": 32,
    "import circles": 2,
    "entered by ncclt env": 5,
    "entered by ncclt run": 8,
}
"""Of commit d73c139, by `--root` of a checkout of it."""

_ENTERED = """
import atexit, sys
atexit.register(lambda: sys.stderr.write("\\n" + " ".join(n for n in sys.modules if n.startswith("ncclt."))))
from ncclt.cli import main
main()
"""


def modules_of(root: Path) -> dict[str, tuple[Path, ast.Module, int]]:
    """Return path, syntax tree and number of lines of each module of the product, by dotted name."""
    found = {}
    for folder in PRODUCT:
        base = (root / folder).parent
        for path in sorted((root / folder).rglob("*.py")):
            parts = path.relative_to(base).with_suffix("").parts
            text = path.read_text(encoding="utf-8")
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found[name] = (path, ast.parse(text), text.count("\n"))
    return found


def imported(name: str, path: Path, tree: ast.Module, known: Mapping[str, object]) -> set[str]:
    """Return the modules of the product that a module imports, wherever in it; what only types need is none."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found = set()
    typed = [node for node in ast.walk(tree) if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    skipped = {inner for node in typed for inner in ast.walk(node)}
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = ".".join(package.split(".")[: len(package.split(".")) - node.level + 1]) if node.level else ""
            base = ".".join(filter(None, (above, node.module)))
            found |= {full if (full := f"{base}.{alias.name}") in known else base for alias in node.names}
    return {one for one in found if one in known and one != name}


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the groups of modules that import each other, the largest first (Tarjan 1972)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    open_, found = [], []

    def visit(node: str) -> None:
        order[node] = low[node] = len(order)
        open_.append(node)
        for following in sorted(graph[node]):
            if following not in order:
                visit(following)
            if following in open_:
                low[node] = min(low[node], low[following])
        if low[node] == order[node]:
            group = open_[open_.index(node) :]
            del open_[len(open_) - len(group) :]
            if len(group) > 1:
                found.append(sorted(group))

    for node in sorted(graph):
        if node not in order:
            visit(node)
    return sorted(found, key=len, reverse=True)


def parameters(trees: Mapping[str, ast.Module]) -> Iterator[tuple[int, str]]:
    """Give the number of parameters of each function, with its name; `self` and `cls` are none."""
    for name, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                yield sum(one.arg not in ("self", "cls") for one in arguments), f"{name}.{node.name}"


def entered(root: Path, *words: str) -> int:
    """Return how many first-level packages and modules of ncclt a command loads."""
    with tempfile.TemporaryDirectory() as folder:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("NCCL", "SLURM"))}
        environ = {**kept, "HOME": folder, "PYTHONPATH": os.pathsep.join(str(root / one) for one in ("tuner", "api"))}
        names = ("--cluster", "leonardo", "--model", "bert", "--storage", f"sqlite:///{folder}/empty.db")
        done = subprocess.run(
            [sys.executable, "-c", _ENTERED, words[0], *names, *words[1:]],
            cwd=folder,
            env=environ,
            capture_output=True,
            text=True,
            check=False,
        )
    loaded = done.stderr.splitlines()[-1].split() if done.stderr else []
    return len({name.split(".")[1] for name in loaded if name.startswith("ncclt.")})


def owners_of(trees: Mapping[str, ast.Module]) -> dict[str, list[str]]:
    """Return the modules that define a class, once for each time, by its name."""
    owners: dict[str, list[str]] = defaultdict(list)
    for name, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                owners[node.name].append(name)
    return owners


def figures(root: Path) -> dict[str, Any]:
    """Return all figures of a checkout, by what they are."""
    modules = modules_of(root)
    graph = {name: imported(name, path, tree, modules) for name, (path, tree, _) in modules.items()}
    importers: dict[str, set[str]] = defaultdict(set)
    for name, targets in graph.items():
        for target in targets:
            importers[target].add(name)
    owners = owners_of({name: tree for name, (_, tree, _) in modules.items()})
    twice = {name: places for name, places in owners.items() if len(places) > 1}
    longest = sorted(parameters({name: tree for name, (_, tree, _) in modules.items()}), reverse=True)[:5]
    long = [name for name, (_, _, lines) in modules.items() if lines > LONG_LINES]
    found: dict[str, Any] = {
        "files": len(modules),
        "lines": sum(lines for _, _, lines in modules.values()),
        "lines of ncclt": sum(lines for name, (_, _, lines) in modules.items() if name.partition(".")[0] == "ncclt"),
        "classes": sum(map(len, owners.values())),
        "class names with two owners": len(twice),
    }
    for package in OWNED:
        inside = [[one for one in places if one.startswith(f"ncclt.{package}.")] for places in twice.values()]
        found[f"... within {package}"] = sum(len(places) > 1 for places in inside)
    rooms = tuple(f"ncclt.{package}." for package in OWNED)
    found["... within these four"] = sum(sum(one.startswith(rooms) for one in places) > 1 for places in twice.values())
    found["one-importer fragments"] = sum(
        lines < FRAGMENT_LINES and len(importers[name]) == 1 and path.name != "__init__.py"
        for name, (path, _, lines) in modules.items()
    )
    found |= {f"longest parameter list {n}": f"{count} {name}" for n, (count, name) in enumerate(longest, 1)}
    found[f"files above {LONG_LINES} lines"] = len(long)
    found["entries of tuner/ncclt"] = sum(not one.name.startswith("__pyc") for one in (root / PRODUCT[0]).iterdir())
    found["import circles"] = len(circles(graph))
    found["entered by ncclt env"] = entered(root, "env")
    found["entered by ncclt run"] = entered(root, "run", "--dry-run", "--", "true")
    return found


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[1], help="a checkout of ncclt")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--list", action="store_true", help="list the class names with two owners, and where they are")
    arguments = parser.parse_args(argv)
    if not (arguments.root / PRODUCT[0]).is_dir():
        parser.error(f"--root: no {PRODUCT[0]} in {arguments.root}")
    if arguments.list:
        trees = {name: tree for name, (_, tree, _) in modules_of(arguments.root.resolve()).items()}
        for name, places in sorted(owners_of(trees).items()):
            if len(places) > 1:
                print(name, *places)
        return
    now = figures(arguments.root.resolve())
    rows = [{"figure": name, "d73c139": BEFORE.get(name), "now": value} for name, value in now.items()]
    if arguments.json:
        print(json.dumps({"rows": rows}, indent=2))
        return
    print(f"{'':29} {'d73c139':>42} {'now':>42}")
    for row in rows:
        print(f"{row['figure']:29} {row['d73c139']!s:>42} {row['now']!s:>42}")


if __name__ == "__main__":
    main()
