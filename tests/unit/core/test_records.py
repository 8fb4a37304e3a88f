"""What holds for every record of the core: it never changes, and neither does what a stored one means."""

import importlib
import json
import os
import pkgutil
from dataclasses import MISSING, fields, is_dataclass, replace
from enum import Enum
from pathlib import Path

from full_records import fill_record

from ncclt import core
from ncclt.core.attestation import Attestation, content_id, content_of
from ncclt.core.documents import Documented, _plain
from ncclt.core.preflight import Preflight

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "documents.json"


MODULES = [importlib.import_module(f"{core.__name__}.{found.name}") for found in pkgutil.iter_modules(core.__path__)]
PLAIN = [
    kind
    for module in MODULES
    for kind in vars(module).values()
    if isinstance(kind, type)
    and kind.__module__ == module.__name__
    and kind is not Documented
    and not (issubclass(kind, Enum | Exception | tuple) or getattr(kind, "_is_protocol", False))
]
"""The classes of the core, but for words, rows, ports and errors."""

RECORDS = [kind for kind in PLAIN if issubclass(kind, Documented)]


def test_data_of_the_core_are_frozen_dataclasses_with_slots():
    wrong = [
        kind.__name__
        for kind in PLAIN
        if not (is_dataclass(kind) and kind.__dataclass_params__.frozen and "__slots__" in vars(kind))
    ]
    assert PLAIN
    assert wrong == []


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
    """Stores and files hold documents for years.

    After a new record or field run this once with NCCLT_UPDATE_GOLDEN=1; any other line that changes gives what was
    stored another meaning.
    """
    found = dict(sorted((kind.__name__, meaning(kind)) for kind in RECORDS))
    if os.environ.get("NCCLT_UPDATE_GOLDEN"):
        lines = [f"{json.dumps(name)}: {json.dumps(entries)}" for name, entries in found.items()]
        GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n")

    assert found == json.loads(GOLDEN.read_text())


def test_every_field_comes_back_from_a_document_unless_it_is_hidden(subtests):
    for kind in RECORDS:
        with subtests.test(kind.__name__):
            if kind is Preflight:
                continue  # its sentences need readings: test_preflight.py
            record = fill_record(kind)
            if kind is Attestation:
                record = replace(record, id=content_id(content_of(record)))
            again = kind.from_document(json.loads(json.dumps(record.to_document(), allow_nan=False)))
            assert {field.name for field in fields(kind) if getattr(record, field.name) == field.default} == {
                *kind.SHAPE.hidden
            }
            assert again == record
