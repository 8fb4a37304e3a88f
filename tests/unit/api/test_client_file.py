"""The client as one file: it runs alone, and is the same client."""

import ast
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

from ncclt_api.routes.client_file import one_file

JOB = ("--cluster", "leonardo", "--model", "bert", "--nodes", "2", "--gpus-per-node", "4", "--nccl-version", "2.22.3")


def test_anyone_may_load_it(client):
    answer = client.get("/client.py")
    assert (answer.status_code, answer.text) == (200, one_file())
    assert answer.headers["content-type"].startswith("text/x-python")


def test_its_parts_do_not_redefine_each_other():
    tree = ast.parse(one_file())
    names = Counter(node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef))
    for node in tree.body:
        if isinstance(node, ast.Assign):
            names.update(name.id for target in node.targets for name in ast.walk(target) if isinstance(name, ast.Name))
    assert [name for name, times in names.items() if times > 1] == []
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level]


def test_it_runs_alone(client, tmp_path, live):
    """On a Python without any package: -I and -S hide those of this machine."""
    file = tmp_path / "client.py"
    file.write_text(client.get("/client.py").text)

    def call(*words):
        done = subprocess.run(
            [sys.executable, "-I", "-S", str(file), *JOB, *words],
            env={"PATH": os.environ["PATH"]},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    code, out, err = call("--server", live, "--allow", "simulated")
    assert (code, err) == (0, "")
    assert "export NCCLT_RECOMMENDATION=0c0ffee1" in out
    code, out, err = call("--server", live)
    assert (code, out) == (3, "")
    assert "SIMULATED" in err
    assert call("--server", "http://127.0.0.1:9")[0] == 69
    assert call("--server", live, "--format", "yaml")[0] == 2
    assert Path(file).read_text() == one_file()
