"""What a store does when its PostgreSQL is away for a moment: everything is asked again that may be asked twice."""

import inspect
from types import SimpleNamespace

import pytest

from ncclt.core.setting import DEFAULT
from ncclt.store import failures, open_store
from ncclt.store.failures import LostTransactionError

PARTS = (
    "workloads", "clusters", "studies", "trials", "leases", "recommendations", "revisions", "records", "jobs", "keys",
)  # fmt: skip
# What is added under a name a second time is refused, although the first time was a success.
ONCE = {
    *("workloads.add", "clusters.add"),
    *(f"revisions.{name}" for name in ("approve", "activate", "roll_back", "pin", "unpin", "retire", "set_rules")),
    *("revisions.settle_arms", "revisions.pause_rollout", "revisions.resume_rollout"),
}


class Name(str):
    """A text, and anything with a name."""

    name = "a"


ANYTHING = SimpleNamespace(setting=DEFAULT, id="a", number=0, cluster=Name("a"), name="a")


class Away:
    """A database that is never there."""

    def __init__(self):
        self.asked = 0

    def __getattr__(self, name):
        self.asked += 1
        raise LostTransactionError("the server is away")


@pytest.fixture
def pauses(monkeypatch):
    found = []
    monkeypatch.setattr(failures.time, "sleep", found.append)
    return found


def methods(part):
    return [name for name, _ in inspect.getmembers(type(part), inspect.isfunction) if name[0] != "_"]


def ask(part, name):
    """Call a method of a store, or of a part of it, whose database is away; return how often it asked."""
    method = getattr(part, name)
    wanted = inspect.signature(method).parameters.values()
    needed = [each for each in wanted if each.default is each.empty and each.kind is not each.VAR_POSITIONAL]
    texts = {"str": "a", "Collection[str]": ("a",)}
    given = {each.name: texts.get(each.annotation, ANYTHING) for each in needed}
    there, part._database = part._database, Away()
    try:
        with pytest.raises(LostTransactionError):
            method(**given)
        return part._database.asked
    finally:
        part._database = there


def test_what_may_be_done_twice_is_done_again_after_growing_pauses(tmp_path, pauses):
    with open_store(f"sqlite:///{tmp_path}/a.db") as store:
        asking = [(store, "", name) for name in methods(store) if name not in ("close", "alone", "within")]
        asking += [(getattr(store, part), f"{part}.", name) for part in PARTS for name in methods(getattr(store, part))]
        asking = [one for one in asking if one[1:] != ("jobs.", "check")]  # by what the catalogues answer
        assert len(asking) > 60
        for part, of, name in asking:
            pauses.clear()
            asked = ask(part, name)
            assert asked == len(pauses) + 1, f"{of}{name}"
            assert pauses == sorted(set(pauses)), f"{of}{name}"
            assert (len(pauses) == 0) == (f"{of}{name}" in ONCE), f"{of}{name}"


def test_something_short_is_done_again_too(tmp_path, pauses):
    with open_store(f"sqlite:///{tmp_path}/a.db") as store:
        assert ask(store, "alone") == len(pauses) + 1 > 1


def test_a_service_answers_at_once_that_its_database_is_away(tmp_path, pauses):
    with open_store(f"sqlite:///{tmp_path}/a.db", is_patient=False) as store:
        assert ask(store, "migration") == 1
    assert pauses == []


def test_the_first_answer_ends_the_repetitions(pauses):
    class Shaky:
        is_patient = True
        left = 2

        @failures.repeatable
        def read(self, *, what):
            self.left -= 1
            if self.left:
                raise LostTransactionError("once")
            return what

    assert Shaky().read(what="row") == "row"
    assert len(pauses) == 1
