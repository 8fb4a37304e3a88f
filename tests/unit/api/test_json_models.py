"""The models of the service have the fields of the records, all but those that the record names."""

import importlib
import inspect
import pkgutil
import runpy
from dataclasses import fields, replace
from pathlib import Path
from typing import get_type_hints

from fastapi.testclient import TestClient

from ncclt import core
from ncclt.core.documents import Documented
from ncclt.core.recommendation import Recommendation
from ncclt.core.rollout import RollOut
from ncclt_api.app import create_app
from ncclt_api.json_models import answer_of

OTHERWISE = {
    "Workload": (set(), {"digest", "bytes_per_step"}),
    "Trial": (set(), {"gpu_seconds"}),
    "Study": ({"workload"}, {"model", "workload_digest", "label"}),
    "StaleJob": ({"status"}, {"job"}),
    "RevisionStatus": (set(), {"rollouts", "ended_rollouts"}),
}
"""Records whose answers leave out fields, which are another model's, and add entries."""

FAKES = Path(__file__).parents[2] / "fakes"


def records():
    """Every record of the core."""
    for module in pkgutil.iter_modules(core.__path__):
        for kind in vars(importlib.import_module(f"{core.__name__}.{module.name}")).values():
            if inspect.isclass(kind) and issubclass(kind, Documented) and kind is not Documented:
                yield kind


def shown_fields(record):
    """Names of the fields that an answer has, those of inlined records in the place of the record."""
    shape = record.SHAPE
    for field in fields(record):
        if field.name in shape.inlined:
            yield from shown_fields(get_type_hints(record)[field.name])
        elif field.name not in (*shape.hidden, *shape.private):
            yield field.name
    yield from (entry for entry, _, _ in shape.computed)


def test_an_answer_has_every_field_that_its_record_does_not_hide(subtests):
    for record in {*records()}:
        with subtests.test(record.__name__):
            entries = set(answer_of(record).model_fields) - {"schema_version"}
            left_out, added = OTHERWISE.get(record.__name__, (set(), set()))
            assert entries == set(shown_fields(record)) - left_out | added


def test_secrets_and_what_only_the_store_needs_are_in_no_answer():
    assert "seed" not in answer_of(RollOut).model_fields


def test_a_full_recommendation_is_the_same_after_store_service_and_client(empty_store, samples):
    fill_record = runpy.run_path(str(FAKES / "full_records.py"))["fill_record"]
    of = samples.study()
    cluster = of.cluster.fingerprint()
    full = fill_record(Recommendation, cluster=of.cluster.name, model=of.workload.name, launcher="slurm")
    full = replace(full, fingerprint=replace(full.fingerprint, nodes=cluster.nodes, gpus_per_node=4))
    published = empty_store.revisions.publish(replace(full, stale=""))
    samples.make_stale(empty_store, published.id)

    with TestClient(create_app(empty_store, fresh_s=0)) as client:
        answer = client.get(f"/v1/recommendations/{published.id}").json()

    received = Recommendation.from_document(answer)
    default = {field.name for field in fields(full) if getattr(received, field.name) == field.default}
    assert received == replace(full, revision=1, stale=received.stale)
    assert default == set()
