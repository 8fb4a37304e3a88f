"""Becomes a rank of the PyTorch benchmark, in a fork of a process that has loaded PyTorch: without seconds of imports.

Whoever runs it sets GIVEN: `argv`, the worker's file and its arguments; `environ`; and the files `out` and `err`.
"""

import contextlib
import importlib
import os
import runpy
import sys

given = globals()["GIVEN"]
os.environ.clear()
os.environ.update(given["environ"])
for name, descriptor in (("out", 1), ("err", 2)):
    os.dup2(os.open(given[name], os.O_WRONLY | os.O_CREAT), descriptor)
sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1, errors="backslashreplace")
sys.path[:0] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
sys.modules.pop("sitecustomize", None)
with contextlib.suppress(ModuleNotFoundError):  # as every interpreter does that starts
    importlib.import_module("sitecustomize")
sys.argv = list(given["argv"])
runpy.run_path(sys.argv[0], run_name="__main__")
