"""A command whose packages are not installed ends in one line that says what to install."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from ncclt.errors import EXTRAS, TORCH, missing_dependency

ROOT = Path(__file__).parents[3]
H100 = ("--cluster", "dgx-h100", "--launcher", "simulate", "--nodes", "2")
STORED = ("--model", "bert", "--cluster", "dgx-h100")
NEEDED = {
    "store": [
        ("studies", "show", "x"),
        ("admin", "recommendations", "pin", "x"),
        ("admin", "keys", "create", "--role", "read"),
        ("admin", "store", "export", "x.jsonl.gz"),
        ("admin", "store", "export", "x.db"),
        ("recheck", *STORED, "--launcher", "simulate"),
        ("verify", "--env", "NCCL_ALGO=Ring", "--", "true"),
        ("preflight", *H100[:2], "--launcher", "ssh", "--hosts", "a,b"),
        (
            "env",
            *STORED,
            *("--nodes", "2", "--gpus-per-node", "8", "--nccl-version", "2.28.3"),
            *("--storage", "postgresql://u@127.0.0.1:1/d"),
        ),
    ],
    "tune": [
        ("tune", "--model", "bert", *H100),
        ("autotune", *H100, "--", "true"),
        ("admin", "worker", "--cluster", "dgx-h100"),
    ],
    "api": [("serve",), ("report", "x")],
    "jobs": [
        ("admin", "jobs", "list"),
        ("admin", "jobs", "submit", "--model", "bert", "--cluster", "dgx-h100"),
        ("admin", "worker", "--cluster", "dgx-h100"),
    ],
    "models": [("profile", "model", "resnet50"), ("profile", "model", "bert")],
}


def blocked(tmp_path, packages, words, *, run="main()"):
    (tmp_path / "mine.csv").write_text("collective,size_bytes,calls\nall_reduce,4096,2\n")
    code = f"import sys; sys.modules.update(dict.fromkeys({packages!r})); from ncclt.cli import main\n{run}"
    environ = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    return subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, env=environ, cwd=tmp_path, timeout=120
    )


# Forks a command of each line of argv, so that the interpreter starts once and every command imports for itself.
EACH = """
import os
for words in eval(sys.argv.pop()):
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.dup2(writing, 1)
        os.dup2(writing, 2)
        os.close(writing)
        sys.argv[1:] = words
        main()
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as said:
        text = said.read()
    print((os.waitstatus_to_exitcode(os.wait()[1]), text), flush=True)
"""


@pytest.mark.parametrize("extra", NEEDED)
def test_missing_extra_is_named_in_one_line(tmp_path, subtests, extra):
    # What typer itself installs is there in any installation; the store's packages have their own cases.
    kept = {"pydantic", "markupsafe", *(EXTRAS["store"] if extra != "store" else ())}
    packages = tuple(p for p in EXTRAS[extra] if p not in kept)
    ran = blocked(tmp_path, packages, (repr(NEEDED[extra]),), run=EACH)
    assert ran.returncode == 0, ran.stderr
    for words, line in zip(NEEDED[extra], ran.stdout.splitlines(), strict=True):
        with subtests.test(" ".join(words)):
            code, said = ast.literal_eval(line)
            assert code not in (0, 2), said
            (reason,) = said.splitlines()
            assert re.search(rf"^ncclt: [a-z]+ is not installed: pip install 'ncclt\[{extra}\]'", reason), reason
    assert not list(tmp_path.glob("*.db"))


def test_table_of_extras_is_that_of_the_project():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra, packages in EXTRAS.items():
        names = []
        for line in declared[extra]:
            inner = re.fullmatch(r"ncclt\[(\w+)\]", line)
            names += EXTRAS[inner[1]] if inner else [re.match(r"[\w-]+", line)[0].replace("-", "_")]
        assert sorted(packages) == sorted(names), extra


def test_missing_torch_names_the_tested_build_for_cpus():
    assert f"torch=={TORCH}\n" in (ROOT / "constraints.txt").read_text()
    assert missing_dependency("torch").message == (
        "torch is not installed: pip install 'ncclt[models]'; for a CPU build, first "
        f"pip install torch=={TORCH} --index-url https://download.pytorch.org/whl/cpu"
    )


def test_debug_shows_the_traceback(tmp_path):
    done = blocked(tmp_path, ("sqlalchemy",), ("--debug", "admin", "store", "export", "x.db"))
    assert "Traceback" in done.stderr
