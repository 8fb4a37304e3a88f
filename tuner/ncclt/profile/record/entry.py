"""Begin in every Python process of a job, to record it or compare its ranks: ncclt copies this as `sitecustomize.py`.

Python imports a module of that name at its start (docs.python.org, module `site`), and ours comes first on PYTHONPATH.
One that the user or the distribution has is therefore imported from here, as if this one did not exist: Python itself
finds and loads it, and passes over its absence. ncclt itself never imports this file. It must load in any Python, also
in one that is too old for the rest: so it has no function, no annotation, and asks for the version by its number. It
imports nothing but what the job's Python has loaded already.
"""

import os
import sys

_FOLDER = __file__.rpartition(os.sep)[0]

if sys.hexversion >= 0x03080000:
    for _name in os.listdir(_FOLDER):  # noqa: PTH208  # pathlib would cost every process its time
        if _name.startswith("_ncclt_"):
            __import__(_name + ".start").start.install(_FOLDER)

_PLACE = sys.path.index(_FOLDER)
sys.path.remove(_FOLDER)
del sys.modules["sitecustomize"]
try:
    import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
finally:
    sys.path.insert(_PLACE, _FOLDER)
