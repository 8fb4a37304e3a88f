"""What `prune_store` removes and never removes, on SQLite and on a real PostgreSQL."""

from dataclasses import replace

import psycopg
import pytest
from sqlalchemy import text

from ncclt.core.attestation import Form, Observed, Witness
from ncclt.core.life import By
from ncclt.core.recheck import Check, Freshness
from ncclt.core.recommendation import Verdict
from ncclt.core.rollout import JobTime, RollOutState
from ncclt.core.setting import DEFAULT
from ncclt.core.study import Phase, StudyState
from ncclt.core.verification import Verification
from ncclt.deliver.effect import attest
from ncclt.deliver.witnesses import delivered_from_recommendation
from ncclt.errors import StoreError
from ncclt.store import open_store
from ncclt.store.database import Database
from ncclt.store.location import locate
from ncclt.store.retention import prune_store
from ncclt.testing.store_contract import sample_recommendation, sample_study, sample_trial

OLD, CUT, NEW = (f"2026-0{month}-01T00:00:00.000+00:00" for month in (1, 4, 7))
ME = By(who="me")
NOTHING = dict.fromkeys(
    ("studies", "trials", "revisions", "roll-outs", "step times", "attestations", "checks", "verifications"), 0
)


class Clock:
    """Says what it was set to."""

    now = OLD

    def __call__(self):
        """Return the time."""
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/ncclt.db"
    postgresql = request.getfixturevalue("postgresql")
    name = f"retention_{abs(hash(request.node.nodeid))}"
    with psycopg.connect(postgresql.get_uri(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return postgresql.get_uri(database=name)


@pytest.fixture
def store(url, clock):
    with open_store(url, clock=clock) as store:
        yield store


def pruned(url, *, before=CUT, dry_run=False, forget=None):
    """Prune and return what was removed, without the kinds of which nothing was."""
    names = []
    forget = forget or (lambda _url, found: names.extend(found))
    counts = prune_store(locate(url), before, dry_run=dry_run, forget=forget)
    assert counts.keys() == NOTHING.keys()
    return {kind: count for kind, count in counts.items() if count}


def everything(url):
    """Return every row of every table."""
    from ncclt.store.tables import metadata

    database = Database(locate(url))
    with database.reading() as connection:
        found = {
            table.name: sorted(map(repr, connection.execute(table.select()))) for table in metadata.sorted_tables
        }
    database.close()
    return found


def study(store, id, *, state=StudyState.DONE, trials=2):
    store.open_study(sample_study(f"study {id}", id=id))
    for number in range(trials):
        store.add_trial(id, sample_trial(number))
    if state is not StudyState.RUNNING:
        store.set_state(id, state, "")


def publish(store, id, *, of, **more):
    return store.publish(replace(sample_recommendation(id, **more), study=of))


def attestation(id, *, created):
    seen = Observed(witnesses=(Witness(kind="plugin-report", table=id),), uses=(), variables={}, notes=())
    return attest(delivered_from_recommendation(sample_recommendation(id), Form.TABLE), seen, created=created)


def check(id, of, *, freshness=Freshness.FRESH, created=OLD):
    return Check(
        id=id, recommendation=of, cluster="pair", model="toy", created=created, freshness=freshness, **MORE_OF_A_CHECK
    )


def verification(id, of, *, created=OLD):
    return Verification(
        id=id, cluster="pair", model="toy", recommendation=of, argv=(), base_env=(), tuned_env=(), removed_env=(),
        warmup=1, steps=1, ranks=1, hosts=1, launches=(), verdict=sample_recommendation("a").table.verdict, notes=(),
        created=created,
    )  # fmt: skip
