"""Check that every third-party import is declared by each extra that the importing file comes with.

What happens to be installed because another package needs it may be gone with that package's next release.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

PLACES: dict[str, tuple[str, ...]] = {
    "api/ncclt_api": ("api",),
    "tuner": ("dev",),
    "tuner/ncclt": (),
    "tuner/ncclt/measure": ("tune",),
    "tuner/ncclt/profile/model": ("models",),
    "tuner/ncclt/prove": ("tune", "api"),
    "tuner/ncclt/search": ("tune",),
    "tuner/ncclt/store": ("store",),
    "tuner/ncclt/store/job_queue.py": ("jobs",),
    "tuner/ncclt/testing": ("dev",),
}
"""Folder or file -> the extras that it comes with, each by itself; the longest path counts. None: the base alone."""

OF_THE_JOB = {
    "tuner/ncclt/deliver/agree/injected": "torch",
    "tuner/ncclt/measure/benchmarks/torch_worker": "torch",
    "tuner/ncclt/profile/record/entry.py": "sitecustomize",
    "tuner/ncclt/profile/record/injected": "torch",
}
"""Run by the Python of the training, and may import this of it."""

OURS = {"ncclt", "ncclt_api"}


def declared(project: dict[str, object], extra: str) -> set[str]:
    """Return the names that the base and one extra require."""
    extras = project["optional-dependencies"]
    found = set()
    for line in [*project["dependencies"], *(extras[extra] if extra else ())]:  # type: ignore[index, misc]
        if inner := re.fullmatch(r"ncclt\[([\w,]+)\]", line):
            found |= {name for other in inner[1].split(",") for name in declared(project, other)}
        else:
            found.add(normal(re.match(r"[\w.-]+", line)[0]))  # type: ignore[index]
    return found


def normal(name: str) -> str:
    """Return the name of a distribution as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def imported(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and top-level name of each absolute import, but of those for type checkers alone."""
    if isinstance(node, ast.Import):
        yield from ((node.lineno, alias.name.partition(".")[0]) for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
        yield node.lineno, node.module.partition(".")[0]
    only_types = isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    for child in node.orelse if only_types else ast.iter_child_nodes(node):  # type: ignore[attr-defined]
        yield from imported(child)


def undeclared(root: Path) -> Iterator[str]:
    """Yield a sentence per import that an extra does not declare."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    known = {extra: declared(project, extra) for extra in ("", *project["optional-dependencies"])}
    distributions = packages_distributions()
    for folder in sorted({place.partition("/")[0] for place in PLACES}):
        for file in sorted((root / folder).rglob("*.py")):
            path = file.relative_to(root).as_posix()
            place = max((one for one in PLACES if f"{path}/".startswith(f"{one}/")), key=len)
            beside = {one.stem for one in file.parent.iterdir()} | OURS
            for line, name in imported(ast.parse(file.read_text(encoding="utf-8"))):
                if name in sys.stdlib_module_names or name in beside:
                    continue
                if name in (of for job, of in OF_THE_JOB.items() if f"{path}/".startswith(f"{job}/")):
                    continue
                names = {normal(one) for one in distributions.get(name, (name,))}
                for extra in PLACES[place] or ("",):
                    if not names & known[extra]:
                        wanted = f"the extra `{extra}`" if extra else "the base installation"
                        yield f"{path}:{line}: {name} is not declared by {wanted}"


if __name__ == "__main__":
    problems = list(undeclared(ROOT))
    print("\n".join(problems) or "every third-party import is declared")
    sys.exit(bool(problems))
