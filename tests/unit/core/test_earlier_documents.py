"""What a document of an earlier version means: an entry that it lacks has the value that it had then.

Stores, caches and clusters' files hold such documents for years. After a new record or field run this once with
NCCLT_UPDATE_GOLDEN=1; a line that changes otherwise gives what was stored another meaning.
"""

import importlib
import json
import os
import pkgutil
from dataclasses import MISSING, fields
from pathlib import Path

from ncclt import core
from ncclt.core.documents import Documented, _plain

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "documents.json"


def records():
    """Every documented class of the core, by name."""
    modules = [
        importlib.import_module(f"{core.__name__}.{found.name}") for found in pkgutil.iter_modules(core.__path__)
    ]
    kinds = [kind for module in modules for kind in vars(module).values() if isinstance(kind, type)]
    return {kind.__name__: kind for kind in kinds if issubclass(kind, Documented) and kind is not Documented}


def meaning(kind):
    """The version of a document, and what stands for each entry that it may lack."""
    defaults = {
        one.name: one.default if one.default_factory is MISSING else one.default_factory()
        for one in fields(kind)
        if not kind.SHAPE.complete or one.name in kind.SHAPE.omitted
    }
    lacking = {name: _plain(value) for name, value in defaults.items() if value is not MISSING}
    return {"schema": kind.SHAPE.schema, "lacking": lacking}


def test_a_document_that_lacks_an_entry_means_what_it_always_has():
    found = {name: meaning(kind) for name, kind in sorted(records().items())}
    if os.environ.get("NCCLT_UPDATE_GOLDEN"):
        lines = [f"{json.dumps(name)}: {json.dumps(entries)}" for name, entries in found.items()]
        GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n")

    assert found == json.loads(GOLDEN.read_text())
