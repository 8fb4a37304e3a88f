"""Begin in every Python process of a job, to record it or compare its ranks: ncclt copies this as `sitecustomize.py`.

Python imports a module of that name at its start (docs.python.org, module `site`), and ours comes first on PYTHONPATH.
One that the user or the distribution has is therefore run from here, as if this one did not exist. ncclt itself never
imports this file. It must load in any Python, also in one that is too old for the rest: so it has no function, no
annotation, and asks for the version by its number.
"""

import os
import sys

_FOLDER = __file__.rpartition(os.sep)[0]

if sys.hexversion >= 0x03080000:
    import importlib

    for _name in os.listdir(_FOLDER):  # noqa: PTH208  # pathlib would cost every process its time
        if _name.startswith("_ncclt_"):
            importlib.import_module(_name + ".start").install(_FOLDER)

if sys.hexversion >= 0x03050000:
    import importlib.machinery

    _spec = importlib.machinery.PathFinder.find_spec("sitecustomize", [p for p in sys.path if p != _FOLDER])
    if _spec is not None and _spec.loader is not None:
        import importlib.util

        # What it raises is reported by Python exactly as it would have been without us.
        _module = importlib.util.module_from_spec(_spec)
        sys.modules["sitecustomize"] = _module
        _spec.loader.exec_module(_module)
