"""Mutation testing with cosmic-ray: `make mutants`, some minutes to an hour, not part of the test suite.

    python tests/mutants.py [--mutants 100] [--seed 0] [--jobs 2] [--limit 900] [PACKAGE ...]

Draws points of the code at random, each point equally likely, changes one at a time and runs the tests of its package:
those of the same module first, and only if all of them pass the ones further away. A mutant that no test fails is
printed with file, line and diff. The test that failed then runs without the change: a mutant counts as found only if
that passes, and one that ran out of time only if all its tests pass without it in half of that time. Whatever fails
without a change, as on a machine too busy, is printed as unclear and counts neither way. Each job works in a copy of
the tree in a temporary folder, so that this tree never holds a mutant, however the run ends. Ctrl-C ends it early and
prints the score so far.

Not drawn, since no behaviour hangs on it: annotations, the options of `@dataclass` (frozen, slots, kw_only), the bodies
of Protocols, `==` turned into `is` and back (whether equal values are one object is an accident of the interpreter),
the removal of a cache, the True of `zip(..., strict=True)` (an assertion: what we zip has one length), and what does
not compile. Nor the seconds of a constant like `_QUESTION_S = 60.0`: one more or less shows in a measured time alone,
and no test asserts a time.
"""

import argparse
import ast
import functools
import itertools
import multiprocessing
import os
import random
import re
import shlex
import shutil
import signal
import site
import sys
import tempfile
import time
import venv
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_and_test, mutate_code
from cosmic_ray.plugins import get_operator, operator_names
from cosmic_ray.work_item import MutationSpec, TestOutcome, WorkResult

ROOT = Path(__file__).resolve().parents[1]
CODE = Path("tuner/ncclt")
# The tests of a package, near ones first.
TESTS = {
    "core": ["unit/core", "unit/search", "unit/nccl", "unit/prove", "unit/deliver", "unit/pipeline/test_tune.py"],
    "nccl": ["unit/nccl", "unit/deliver/render", "unit/measure/test_simulated.py"],
    "prove": ["unit/prove", "unit/pipeline/test_tune.py", "unit/search/test_assemble.py"],
    "deliver": ["unit/deliver", "unit/nccl/test_compile.py", "unit/cli"],
    "search": ["unit/search", "unit/prove/test_confined.py", "unit/pipeline/test_tune.py"],
    "store": [
        "unit/store",
        "contract/test_stores.py",
        "contract/test_archive.py",
        "contract/test_retention.py",
        "unit/api",
        "unit/pipeline/test_tune.py",
        "unit/cli",
    ],
    "launch": [
        "unit/launch",
        "contract/test_launchers.py",
        "unit/measure",
        "integration/test_launchers.py",
        "integration/test_kubernetes.py",
        "integration/test_ssh.py",
    ],
    "client": ["unit/client", "unit/deliver/render", "integration/test_run.py"],
}


@dataclass(frozen=True)
class Mutant:
    """One change of one file: module relative to the root, operator of cosmic-ray and which of its occurrences."""

    module: Path
    operator: str
    occurrence: int
    start: tuple[int, int]
    end: tuple[int, int]

    def __str__(self) -> str:
        return f"{self.module}:{self.start[0]} {self.operator.partition('/')[2]}"


def package_of(module: Path) -> str:
    """Return the key of TESTS that a module belongs to."""
    return module.relative_to(CODE).parts[0]


@functools.cache
def test_files(module: Path) -> tuple[tuple[str, ...], ...]:
    """Return the files of tests for a change of one module: unit tests that name it or have its word, and the rest."""
    found: list[Path] = []
    for place in TESTS[package_of(module)]:
        path = ROOT / "tests" / place
        if not path.exists():
            sys.exit(f"{Path(__file__).name}: tests/{place} is gone: name its successor in TESTS")
        found += sorted(path.rglob("test_*.py")) if path.is_dir() else [path]
    dotted = re.compile(rf"\b{re.escape('.'.join(module.relative_to('tuner').with_suffix('').parts))}\b")
    unit = sorted((ROOT / "tests" / "unit").rglob("test_*.py"))
    named = [path for path in unit if dotted.search(path.read_text(encoding="utf-8"))]
    # Contract tests are never near: they start servers, a minute where a unit test often finds it in a second.
    near = [
        path
        for path in found
        if path in named or (path in unit and path.stem.split("_")[1] == module.stem.split("_")[0])
    ]
    near.sort(key=lambda path: path.stem != f"test_{module.stem}")
    far = [path for path in dict.fromkeys([*found, *named]) if path not in near]
    # Those that speak of what the module defines fail soonest; servers still come last.
    tree = ast.parse((ROOT / module).read_text(encoding="utf-8"))
    defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    spoken = {path: len(defined & set(re.findall(r"\w+", path.read_text(encoding="utf-8")))) for path in far}
    far.sort(key=lambda path: (path not in unit, -spoken[path]))
    # Tests of the scripts in bench/ start many programs and look at what those print.
    return tuple(
        tuple(str(path.relative_to(ROOT)) for path in files if not path.stem.startswith("test_bench"))
        for files in (near, far)
    )


def without_behaviour(source: str) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Return the spans, as (line, column) of start and end, of what no test can see; the docstring above lists it."""
    nodes: list[ast.AST | None] = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.arg() | ast.AnnAssign():
                nodes.append(node.annotation)
            case ast.FunctionDef():
                nodes.append(node.returns)
                nodes += [d for d in node.decorator_list if re.search(r"'(lru_)?cache'", ast.dump(d))]
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name.endswith("_S"):
                nodes.append(value)
            case ast.Call(func=ast.Name(id="zip")):
                nodes += [k.value for k in node.keywords if isinstance(k.value, ast.Constant) and k.value.value is True]
            case ast.ClassDef(bases=[ast.Name("Protocol"), *_]):
                nodes.append(node)
                nodes += node.decorator_list
            case ast.ClassDef():
                nodes += [d for d in node.decorator_list if isinstance(d, ast.Call) and "dataclass" in ast.dump(d.func)]
    return [((n.lineno, n.col_offset), (n.end_lineno, n.end_col_offset)) for n in nodes if n is not None]


def mutants_of(module: Path) -> Iterator[Mutant]:
    """Yield every mutant of one module that is worth drawing."""
    source = (ROOT / module).read_text(encoding="utf-8")
    nodes = list(ast_nodes(get_ast(source)))
    excluded = without_behaviour(source)
    for name in operator_names():
        operator = get_operator(name)
        to_identity = "Comparison" in name and name.endswith(("_Is", "_IsNot")) and "_Is_" not in name
        if operator.arguments() or to_identity or name.endswith(("_Is_Eq", "_IsNot_NotEq")):
            continue
        spots = itertools.chain.from_iterable(operator().mutation_positions(node) for node in nodes)
        for occurrence, (start, end) in enumerate(spots):
            if not any(first <= start and end <= last for first, last in excluded):
                yield Mutant(module, name, occurrence, start, end)


def applies(mutant: Mutant) -> bool:
    """Tell whether cosmic-ray can make the change (8.7 cannot replace `except a.B`) and Python accepts the module."""
    source = (ROOT / mutant.module).read_text(encoding="utf-8")
    try:
        compile(mutate_code(source, get_operator(mutant.operator)(), mutant.occurrence), mutant.module, "exec")
    except (AttributeError, SyntaxError):
        return False
    return True


def draw(packages: list[str], count: int, seed: int) -> list[Mutant]:
    """Draw points without replacement, and for each one of the changes that are possible there."""
    points: dict[tuple[object, ...], list[Mutant]] = defaultdict(list)
    for package in packages:
        path = ROOT / CODE / package
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            for mutant in mutants_of(file.relative_to(ROOT)):
                points[mutant.module, mutant.start, mutant.end].append(mutant)
    chance = random.Random(seed)
    order = chance.sample(sorted(points, key=str), len(points))
    drawn = (mutant for point in order for mutant in [chance.choice(points[point])] if applies(mutant))
    return list(itertools.islice(drawn, count))


def copy_tree(copy: Path) -> None:
    """Copy the tree, with an environment of its own that has our packages and imports ncclt from the copy."""
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "__pycache__"), symlinks=True)
    venv.create(copy / ".venv", with_pip=False, symlinks=True)
    packages = copy / ".venv" / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    ours = [p for p in sys.path if "site-packages" in p] or site.getsitepackages()
    (packages / "tree.pth").write_text("\n".join([str(copy / "tuner"), str(copy / "api"), *ours]) + "\n")


def prepare(copies: "multiprocessing.Queue[Path]") -> None:
    """Enter a copy of the tree; runs once in each worker."""
    signal.signal(signal.SIGINT, lambda *_: None)  # the main process ends the workers; to be ignored is inherited
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.chdir(copies.get())


def run_tests(changes: list[MutationSpec], steps: tuple[tuple[str, ...], ...], limit_s: float) -> WorkResult:
    """Run tests step by step until one fails, with these changes, in the copy that this worker is in."""
    # cosmic-ray starts the tests in a session of their own: setpriv, as they must not outlive an interrupted run. It
    # also forbids compiled files, since Python does not notice a change within the same second; we remove those of the
    # changed modules instead, because compiling all of them for each run takes longer than most tests.
    alone = ["setpriv", "--pdeathsig", "KILL"]
    pytest = [*alone, "env", "-u", "PYTHONDONTWRITEBYTECODE", ".venv/bin/python", "-m", "pytest", "-x", "-q"]
    pytest += ["-p", "no:cacheprovider", "--hypothesis-seed=0"]
    command = " && ".join(shlex.join([*pytest, *tests]) for tests in steps if tests)
    forget_compiled(changes)
    try:
        return mutate_and_test(changes, shlex.join([*alone, "sh", "-c", command]), limit_s)
    finally:
        forget_compiled(changes)


def forget_compiled(changes: list[MutationSpec]) -> None:
    """Remove the compiled files of changed modules."""
    for change in changes:
        for compiled in (change.module_path.parent / "__pycache__").glob(f"{change.module_path.stem}.*"):
            compiled.unlink()


@functools.cache
def passes_unchanged(steps: tuple[tuple[str, ...], ...], limit_s: float) -> bool:
    """Tell whether these tests pass as the code is."""
    return run_tests([], steps, limit_s).test_outcome is TestOutcome.SURVIVED


def fate_of(result: WorkResult, steps: tuple[tuple[str, ...], ...], limit_s: float) -> str:
    """Return in a word what the tests make of a mutant."""
    if result.test_outcome is TestOutcome.SURVIVED:
        return "survived"
    if result.test_outcome is not TestOutcome.KILLED:
        return "untested"
    if result.output == "timeout":
        return "out of time" if passes_unchanged(steps, limit_s / 2) else "unclear"
    # Without a name, as where the change ends the interpreter, all of them must pass. Lines of a log may begin like it.
    summary = result.output.rpartition("short test summary info")[2]
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", summary, re.MULTILINE)
    return "found" if passes_unchanged(((failed[1],),) if failed else steps, limit_s) else "unclear"


def run_mutant(task: tuple[Mutant, tuple[tuple[str, ...], ...], float]) -> tuple[Mutant, WorkResult, str, float]:
    """Test one mutant; return what cosmic-ray says, its fate and how many seconds it took."""
    mutant, steps, limit_s = task
    started = time.monotonic()
    change = MutationSpec(mutant.module, mutant.operator, mutant.occurrence, mutant.start, mutant.end)
    result = run_tests([change], steps, limit_s)
    return mutant, result, fate_of(result, steps, limit_s), time.monotonic() - started


def report(number: int, mutant: Mutant, result: WorkResult, fate: str, took_s: float) -> None:
    """Print the fate of one mutant, and what it was or what failed unless it was found."""
    if fate == "untested":
        sys.exit(f"{mutant}: cosmic-ray failed: {result.output}")
    print(f"{number:4} {fate:11} {took_s:4.0f} s  {mutant}", flush=True)
    if fate == "survived":
        print("\n".join(line for line in result.diff.splitlines() if line[:2] not in ("--", "++")), flush=True)
    if fate == "unclear":
        print("\n".join(result.output.splitlines()[-3:]), flush=True)


def run_all(mutants: list[Mutant], jobs: int, limit_s: float) -> Iterator[tuple[Mutant, WorkResult, str, float]]:
    """Yield the result of each mutant as it comes; leave nothing behind, even if cut short."""
    # Looked up before the tree is copied, so that a test that is written meanwhile is not missed in the copies.
    tasks = [(mutant, test_files(mutant.module), limit_s) for mutant in mutants]
    with tempfile.TemporaryDirectory(prefix="ncclt-mutants-", ignore_cleanup_errors=True) as scratch:
        copies: multiprocessing.Queue[Path] = multiprocessing.Queue()
        for number in range(jobs):
            copy_tree(Path(scratch) / str(number))
            copies.put(Path(scratch) / str(number))
        with multiprocessing.Pool(jobs, prepare, [copies]) as pool:
            yield from pool.imap_unordered(run_mutant, tasks)


def main() -> None:
    """Draw, test and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", nargs="*", metavar="PACKAGE", help=f"of {', '.join(TESTS)}; left out: all of them")
    parser.add_argument("--mutants", type=int, default=100, help="how many to draw")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--limit", type=float, default=900.0, help="seconds for the tests of one mutant")
    parser.add_argument("--list", action="store_true", help="print what would be tested, and stop")
    arguments = parser.parse_args()
    if unknown := set(arguments.packages) - set(TESTS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(TESTS)}")
    mutants = draw(arguments.packages or list(TESTS), arguments.mutants, arguments.seed)
    if arguments.list:
        print(*mutants, sep="\n")
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the workers and the copies go, as with Ctrl-C
    fates: Counter[str] = Counter()
    try:
        for number, done in enumerate(run_all(mutants, arguments.jobs, arguments.limit), 1):
            report(number, *done)
            fates[done[2]] += 1
    except KeyboardInterrupt:
        print(f"interrupted: {len(mutants) - fates.total()} of {len(mutants)} were not tested")
    found = fates["found"] + fates["out of time"]
    tested = found + fates["survived"]
    if tested:
        late = f" ({fates['out of time']} by running out of time)" if fates["out of time"] else ""
        late += f", {fates['unclear']} unclear" if fates["unclear"] else ""
        print(f"{found} of {tested} found{late}, {100 * found / tested:.0f} %; seed {arguments.seed}")


if __name__ == "__main__":
    main()
