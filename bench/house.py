"""Size and granularity of the product, with their targets.

    python bench/house.py [--root FOLDER] [--json | --list ROW | --ratchet]

Counts the syntax trees below tuner/ and api/, scripts beside the packages included; the commands and options come from
the click tree of that checkout, in a process of its own. `--list` names the items of a row. `--ratchet` compares the
code lines alone with the number in docs/internals/size.md, and fails above it; `make lint` runs it. A code line holds a
token that is neither a comment nor a docstring.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import os
import re
import subprocess
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

Node = TypeVar("Node", bound=ast.AST)

PRODUCT = ("tuner", "api")
SIZE_PAGE = "docs/internals/size.md"
MAX_PARAMETERS = 6
MAX_FUNCTION_LINES = 60
VAGUE = re.compile(
    "found|one|other|said|told|given|kept|mine|theirs|known|seen|made|made_of|left|rest|whole|thing|what|who|needs|holds|"
    "taken|every|both|several|more|most|same|here|there|then|that|this|it"
)
"""Names that say nothing about the value of a local."""

TARGETS: dict[str, float] = {
    "modules": 380,
    "classes": 500,
    "code lines": 46_000,
    "test lines per code line, %": 90,
    "bench lines": 4_500,
    "vague locals per 1,000 code lines": 5,
    f"functions > {MAX_FUNCTION_LINES} lines": 0,
    "leaf commands": 50,
    "options": 380,
    "launcher names compared outside launch/": 0,
    "question-word docstrings": 0,
    "fmt: skip": 20,
    "private functions used once, %": 14,
    f"functions > {MAX_PARAMETERS} parameters": 20,
}
"""The most that each row should be."""

LAYOUT = frozenset(
    {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER, tokenize.COMMENT}
)
"""Tokens that do not make a line a code line."""

_QUESTION = re.compile(r"(?:(?:Return|Yield|Say|Tell|Show)\s+)?(?:what|which|whether|how|where|who|when|why)\b", re.I)

_COMMANDS = """
import json, sys
import typer
from ncclt.cli.application import app

def leaves(command, words):
    below = getattr(command, "commands", None)
    if below is None:
        yield words, command
    for name in (command.list_commands(typer.Context(command)) if below is not None else ()):
        yield from leaves(command.get_command(typer.Context(command), name), (*words, name))

def options(words, command):
    if words in (("env",), ("run",)):  # argparse: they start without the framework
        if words == ("env",):
            from ncclt.cli.env import parser
        else:
            from ncclt.cli.run_prepare import parser
        return [one.option_strings[0] for one in parser()._actions if one.option_strings and one.dest != "help"]
    return [one.opts[0] for one in command.params if one.param_type_name == "option" and one.name != "help"]

print(json.dumps([(" ".join(words), options(words, one)) for words, one in leaves(typer.main.get_command(app), ())]))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """Source of one module, with its path relative to the root."""

    name: str
    path: Path
    text: str
    tree: ast.Module

    @property
    def functions(self) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        return (node for node in ast.walk(self.tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def read_modules(root: Path) -> dict[str, Module]:
    """Read each module of the product, by dotted name."""
    modules = {}
    for folder in PRODUCT:
        for path in sorted((root / folder).rglob("*.py")):
            parts = path.relative_to(root / folder).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            text = path.read_text(encoding="utf-8")
            modules[name] = Module(name=name, path=path.relative_to(root), text=text, tree=ast.parse(text))
    return modules


def count_code_lines(text: str) -> int:
    """Count the lines with a token that is neither a comment nor a docstring (of an attribute either)."""
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            if isinstance(statement, ast.Expr) and isinstance(getattr(statement.value, "value", None), str):
                docstrings.update(range(statement.lineno, (statement.end_lineno or 0) + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in LAYOUT:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - docstrings)


def count_folder(root: Path, *folders: str) -> int:
    """Count the code lines of the Python files below folders of a checkout."""
    return sum(
        count_code_lines(path.read_text(encoding="utf-8"))
        for folder in folders
        for path in sorted((root / folder).rglob("*.py"))
    )


def read_limit(root: Path) -> int:
    """Return the number of code lines that the product may not exceed.

    Raises:
        SystemExit: the page names none.
    """
    page = root / SIZE_PAGE
    number = re.search(r"\*\*([\d,]+) code lines\*\*", page.read_text(encoding="utf-8")) if page.is_file() else None
    if number is None:
        sys.exit(f"{SIZE_PAGE} names no limit: it needs **N code lines**")
    return int(number[1].replace(",", ""))


def check_ratchet(root: Path) -> None:
    """Compare the product's code lines with their limit.

    Raises:
        SystemExit: there are more.
    """
    limit, lines = read_limit(root), count_folder(root, *PRODUCT)
    if lines > limit:
        sys.exit(
            f"{lines:,} code lines in tuner/ and api/, {lines - limit:,} more than {SIZE_PAGE} allows: delete or merge,"
            " or raise the number there with a line that names the capability"
        )
    print(f"{lines:,} code lines of at most {limit:,}{'; lower the limit' if lines < limit else ''}")


def find_nodes(
    modules: Mapping[str, Module], kind: type[Node], condition: Callable[[Node], bool]
) -> Iterator[tuple[str, Node]]:
    """Yield path and line of each syntax node of a kind that meets a condition, and the node."""
    for module in modules.values():
        for node in ast.walk(module.tree):
            if isinstance(node, kind) and condition(node):
                yield f"{module.path}:{getattr(node, 'lineno', 0)}", node


def find_vague_locals(modules: Mapping[str, Module]) -> list[str]:
    """List locals, arguments and loop variables whose name says nothing about their value."""

    def name(node: ast.AST) -> str:
        if isinstance(node, ast.arg):
            return node.arg
        return node.id if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) else ""

    vague = find_nodes(modules, ast.AST, lambda node: VAGUE.fullmatch(name(node)) is not None)
    return [f"{place} {name(node)}" for place, node in vague]


def find_long_functions(modules: Mapping[str, Module]) -> list[str]:
    """List functions of more than `MAX_FUNCTION_LINES`, the longest first."""
    lengths = [
        ((node.end_lineno or node.lineno) - node.lineno + 1, f"{module.path}:{node.lineno} {node.name}")
        for module in modules.values()
        for node in module.functions
    ]
    return [f"{place} {lines}" for lines, place in sorted(lengths, reverse=True) if lines > MAX_FUNCTION_LINES]


def find_class_owners(modules: Mapping[str, Module]) -> dict[str, list[str]]:
    """Return the modules that define a class, one entry per definition, by its name."""
    owners: dict[str, list[str]] = defaultdict(list)
    for module in modules.values():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                owners[node.name].append(module.name)
    return owners


def find_compared_launchers(modules: Mapping[str, Module]) -> list[str]:
    """List comparisons with the name of a launcher, `match` and tables by name included, outside `ncclt.launch`."""
    names = set(_read_launchers(modules["ncclt.launch"].tree)) if "ncclt.launch" in modules else set()

    def count_names(nodes: Iterable[ast.AST | None]) -> int:
        return sum(isinstance(node, ast.Constant) and node.value in names for node in nodes)

    def compares(node: ast.AST) -> bool:
        if isinstance(node, ast.Compare):
            operands = [node.left, *node.comparators]
            return count_names([*operands, *(entry for side in operands for entry in getattr(side, "elts", ()))]) > 0
        if isinstance(node, ast.Dict):
            return count_names(node.keys) > 1
        return isinstance(node, ast.MatchValue) and count_names([node.value]) > 0

    outside = {name: module for name, module in modules.items() if not name.startswith("ncclt.launch")}
    return [place for place, _ in find_nodes(outside, ast.AST, compares)]


def _read_launchers(tree: ast.Module) -> list[str]:
    """Return the keys of the literal table `LAUNCHERS`."""
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "LAUNCHERS" and node.value:
            return list(ast.literal_eval(node.value))
    return []


def find_question_docstrings(modules: Mapping[str, Module]) -> list[str]:
    """List docstrings that begin with a question word or with `Return` and one, those of constants included."""

    def first_line(node: ast.Expr) -> str:
        text = getattr(node.value, "value", None)
        return text.strip().partition("\n")[0] if isinstance(text, str) else ""

    questions = find_nodes(modules, ast.Expr, lambda node: _QUESTION.match(first_line(node)) is not None)
    return [f"{place} {first_line(node)}" for place, node in questions]


def find_unformatted(modules: Mapping[str, Module]) -> list[str]:
    """List the comments that exempt a line from the formatter."""
    return [
        f"{module.path}:{token.start[0]}"
        for module in modules.values()
        if "fmt: skip" in module.text
        for token in tokenize.generate_tokens(io.StringIO(module.text).readline)
        if token.type == tokenize.COMMENT and "fmt: skip" in token.string
    ]


def find_used_once(modules: Mapping[str, Module]) -> list[str]:
    """List private functions and methods whose name stands once more in their module: one use."""
    return [
        f"{module.path}:{node.lineno} {node.name}"
        for module in modules.values()
        for words in [Counter(re.findall(r"\w+", module.text))]
        for node in module.functions
        if node.name.startswith("_") and not node.name.startswith("__") and words[node.name] == 2
    ]


def find_long_parameter_lists(modules: Mapping[str, Module]) -> list[str]:
    """List functions with more parameters than `MAX_PARAMETERS`, the longest first; `self` and `cls` are none."""
    counts = []
    for module in modules.values():
        for node in module.functions:
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            count = sum(argument.arg not in ("self", "cls") for argument in arguments)
            if count > MAX_PARAMETERS:
                counts.append((count, f"{module.path}:{node.lineno} {node.name} {count}"))
    return [line for _, line in sorted(counts, reverse=True)]


def read_commands(root: Path) -> dict[str, list[str]]:
    """Return the options of each leaf command of a checkout.

    Raises:
        SystemExit: its command line cannot be imported.
    """
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(str(root / one) for one in ("tuner", "api"))}
    done = subprocess.run(
        [sys.executable, "-c", _COMMANDS], cwd=root, env=environ, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"cannot read the commands of {root}:\n{done.stderr}")
    return dict(json.loads(done.stdout))


def collect(root: Path) -> dict[str, list[str]]:
    """Return everything that is counted in a checkout, by row; a percentage lists its numerator."""
    modules = read_modules(root)
    commands = read_commands(root)
    return {
        "modules": sorted(modules),
        "classes": sorted(f"{name} {place}" for name, places in find_class_owners(modules).items() for place in places),
        "leaf commands": list(commands),
        "options": [f"{name} {option}" for name, options in commands.items() for option in options],
        "vague locals per 1,000 code lines": find_vague_locals(modules),
        f"functions > {MAX_FUNCTION_LINES} lines": find_long_functions(modules),
        "launcher names compared outside launch/": find_compared_launchers(modules),
        "question-word docstrings": find_question_docstrings(modules),
        "fmt: skip": find_unformatted(modules),
        "private functions used once, %": find_used_once(modules),
        f"functions > {MAX_PARAMETERS} parameters": find_long_parameter_lists(modules),
    }


def measure(root: Path) -> list[dict[str, str | float]]:
    """Return name, today's figure and target of each row."""
    modules = read_modules(root)
    figures: dict[str, float] = {name: len(entries) for name, entries in collect(root).items()}
    code_lines = figures["code lines"] = count_folder(root, *PRODUCT)
    figures["test lines per code line, %"] = round(100 * count_folder(root, "tests") / code_lines)
    figures["bench lines"] = count_folder(root, "bench")
    vague = "vague locals per 1,000 code lines"
    figures[vague] = round(1000 * figures[vague] / code_lines, 1)
    functions = sum(1 for module in modules.values() for _ in module.functions)
    once = "private functions used once, %"
    figures[once] = round(100 * figures[once] / max(functions, 1), 1)
    return [{"figure": name, "now": figures[name], "target": target} for name, target in TARGETS.items()]


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[1], help="a checkout of ncclt")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--ratchet", action="store_true", help=f"compare the code lines with {SIZE_PAGE} alone")
    parser.add_argument("--list", metavar="ROW", help="list the items of a row, by its first letters")
    arguments = parser.parse_args(argv)
    root = arguments.root.resolve()
    if not (root / "tuner" / "ncclt").is_dir():
        parser.error(f"--root: no tuner/ncclt in {arguments.root}")
    if arguments.list is not None:
        lists = collect(root)
        chosen = next((name for name in lists if name.startswith(arguments.list)), None)
        if chosen is None:
            parser.error(f"--list: no row {arguments.list!r}; the rows are {', '.join(lists)}")
        print(*lists[chosen], sep="\n")
        return
    if arguments.ratchet:
        check_ratchet(root)
        return
    rows = measure(root)
    if arguments.json:
        print(json.dumps({"rows": rows}, indent=2))
        return
    print(f"{'':39} {'now':>8} {'target':>8}")
    for row in rows:
        met = "" if float(row["now"]) <= float(row["target"]) else "  above"
        print(f"{row['figure']:39} {row['now']:>8} {row['target']:>8}{met}")


if __name__ == "__main__":
    main()
