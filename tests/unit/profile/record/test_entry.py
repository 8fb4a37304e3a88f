"""Reaching Python processes by their start, without a trace of it in them."""

import json
import os
import subprocess
import sys

import pytest

from ncclt.profile.record.plan import Method, RecordOptions, plan_recording
from ncclt.profile.record.session import make_folder

# Enough of PyTorch for the hook: its optimizers' module, with the function that registers.
OPTIMIZER = "hooks = []\ndef register_optimizer_step_post_hook(hook):\n    hooks.append(hook)\n"


@pytest.fixture
def folder(tmp_path):
    """The folder of a recording that is about to begin."""
    made = make_folder(tmp_path, keep=None)
    plan = plan_recording(["x"], RecordOptions(method=Method.TORCH, steps=2, warmup=2), folder=made, environ={})
    for name, content in plan.files:
        (made / name).write_text(content)
    return made


@pytest.fixture
def run(folder, tmp_path):
    """Run Python code in a process that is reached, with a small stand-in for PyTorch."""
    package = tmp_path / "site" / "torch" / "optim"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "optimizer.py").write_text(OPTIMIZER)

    def _run(code, *flags, reached=True):
        path = os.pathsep.join([str(folder / "inject")] * reached + [str(tmp_path / "site")])
        done = subprocess.run(
            [sys.executable, *flags, "-c", code],
            env=os.environ | {"PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    return _run


def _journals(folder):
    return [json.loads(path.read_text()) for path in (folder / "ranks").glob("*.json")]


def test_hook_is_registered_when_the_program_imports_optimizers(run, folder):
    code = (
        "import torch.optim.optimizer as o, sys; print(len(o.hooks), type(o.__loader__).__name__, "
        "type(o.__spec__.loader).__name__, any('ncclt' in type(f).__module__ for f in sys.meta_path), "
        "'ncclt' in sys.modules)"
    )
    assert run(code) == (0, "1 SourceFileLoader SourceFileLoader False False\n", "")
    (journal,) = _journals(folder)
    assert (journal["state"], journal["failures"]) == ("loaded", [])


@pytest.mark.parametrize("distribution_has_one", [False, True])
def test_programs_without_pytorch_load_nothing_more(run, folder, tmp_path, distribution_has_one):
    """Debian and Ubuntu have a sitecustomize."""
    if distribution_has_one:
        (tmp_path / "site" / "sitecustomize.py").touch()
    code = "import sys; print(*sorted(sys.modules))"
    _status, bare, _err = run(code, reached=False)
    assert ("sitecustomize" in bare.split()) >= distribution_has_one
    status, out, err = run(code)
    assert (status, err) == (0, "")
    assert set(out.split()) - set(bare.split()) <= {
        "__future__",
        "_ncclt_recording",
        "_ncclt_recording.start",
        "_ncclt_recording.when_imported",
    }
    assert (folder / "python-started").exists()
    assert not _journals(folder)


def test_another_sitecustomize_runs_as_if_alone(run, tmp_path):
    (tmp_path / "site" / "sitecustomize.py").write_text(
        "print('theirs', __name__, __file__.endswith('site/sitecustomize.py'))"
    )
    assert run("import sitecustomize; print(sitecustomize.__file__.split('/')[-2])") == (
        0,
        "theirs sitecustomize True\nsite\n",
        "",
    )


def test_python_path_stays_whatever_another_sitecustomize_does(run, folder, tmp_path):
    """Programs hand `sys.path` on to their children, which are to be reached too."""
    (tmp_path / "site" / "sitecustomize.py").write_text("import sys; sys.path = [p for p in sys.path if p]")
    assert run("import sys; print(*sys.path[:3], sep='\\n')") == (
        0,
        f"\n{folder / 'inject'}\n{tmp_path / 'site'}\n",
        "",
    )


def test_error_in_another_sitecustomize_is_reported_as_ever(run, tmp_path):
    (tmp_path / "site" / "sitecustomize.py").write_text("raise ValueError('theirs')")
    status, out, err = run("print('runs')")
    assert (status, out) == (0, "runs\n")
    assert "ValueError: theirs" in err


def test_isolated_python_is_not_reached_and_runs(run, folder):
    assert run("print(1)", "-I") == (0, "1\n", "")
    assert not (folder / "python-started").exists()


def test_removed_folder_leaves_programs_alone(run, folder):
    (folder / "python-started").mkdir()  # stands for a folder that takes no files
    assert run("import torch.optim.optimizer as o; print(o.hooks)") == (0, "[]\n", "")


@pytest.mark.parametrize("old", ["", "x = 1\n"])
def test_pytorch_without_the_hook_is_told_and_loads(run, folder, tmp_path, old):
    (tmp_path / "site" / "torch" / "optim" / "optimizer.py").write_text(old)
    assert run("import torch.optim.optimizer; print('trains')") == (0, "trains\n", "")
    (journal,) = _journals(folder)
    assert journal["state"] == "failed"
    assert "torch 2.0" in journal["failures"][0]


def test_broken_plan_is_told_and_the_program_runs(run, folder):
    (folder / "inject" / "recording.json").write_text("{")
    assert run("import torch.optim.optimizer as o; print(len(o.hooks))") == (0, "0\n", "")
    assert "JSONDecodeError" in _journals(folder)[0]["failures"][0]
