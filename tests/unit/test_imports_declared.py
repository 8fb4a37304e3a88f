"""The check of continuous integration that each extra declares what its files import."""

import runpy
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / ".ci" / "imports.py"
PROJECT = """
[project]
dependencies = ["typer>=0.20"]
[project.optional-dependencies]
store = ["sqlalchemy>=2.1"]
tune = ["ncclt[store]", "detect-secrets>=1.5"]
api = ["ncclt[store]"]
jobs = []
models = []
dev = ["ncclt[tune]"]
"""


@pytest.mark.parametrize(
    ("place", "line", "missing"),
    [
        ("tuner/ncclt/store/job_queue.py", "import anyio.to_thread", "anyio is not declared by the extra `jobs`"),
        (
            "tuner/ncclt/cli/tune.py",
            "import torch, typer",
            "torch is not declared by the base installation",
        ),
        ("tuner/ncclt/prove/proof.py", "import detect_secrets", "detect_secrets is not declared by the extra `api`"),
        ("tuner/ncclt/measure/redact.py", "def redact():\n    import detect_secrets, sqlalchemy, typer, json", ""),
        ("tuner/ncclt/cli/tune.py", "from . import x\nimport ncclt.core\nif TYPE_CHECKING:\n    import torch", ""),
        ("tuner/ncclt/profile/record/injected/start.py", "import torch", ""),
        ("tuner/ncclt/profile/record/session.py", "import torch", "torch is not declared by the base installation"),
    ],
)
def test_import_that_an_extra_does_not_declare_is_found(tmp_path, place, line, missing):
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    (tmp_path / place).parent.mkdir(parents=True)
    (tmp_path / place).write_text(line)
    found = list(runpy.run_path(str(SCRIPT))["undeclared"](tmp_path))
    assert [sentence.partition(": ")[2] for sentence in found] == [missing] * bool(missing)
