"""What a store does when its PostgreSQL is away for a moment: everything is asked again that may be asked twice."""

import inspect
from types import SimpleNamespace

import pytest

from ncclt.store import failures, open_store
from ncclt.store.failures import LostTransactionError
from ncclt.store.store import Store

# What is added under a name a second time is refused, although the first time was a success.
ONCE = {
    "add_workload",
    "add_cluster",
    "approve",
    "activate",
    "roll_back",
    "pin",
    "unpin",
    "retire",
    "set_rules",
    "end_rollout",
}
ASKING = {name for name, _ in inspect.getmembers(Store, inspect.isfunction) if name[0] != "_"} - {"close", "alone"}
ANYTHING = SimpleNamespace(id="a", number=0, cluster="a")


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


def ask(store, method):
    """Call a method of a store whose database is away; return how often it asked."""
    wanted = inspect.signature(method).parameters.values()
    needed = [each for each in wanted if each.default is each.empty and each.name != "self"]
    given = {each.name: "a" if each.annotation == "str" else ANYTHING for each in needed}
    there, store._database = store._database, Away()
    try:
        with pytest.raises(LostTransactionError):
            method(store, **given)
        return store._database.asked
    finally:
        store._database = there


def test_what_may_be_done_twice_is_done_again_after_growing_pauses(tmp_path, pauses):
    with open_store(f"sqlite:///{tmp_path}/a.db") as store:
        for name in sorted(ASKING):
            pauses.clear()
            asked = ask(store, getattr(Store, name))
            assert asked == len(pauses) + 1, name
            assert pauses == sorted(set(pauses)), name
            assert (len(pauses) == 0) == (name in ONCE), name


def test_something_short_is_done_again_too(tmp_path, pauses):
    with open_store(f"sqlite:///{tmp_path}/a.db") as store:
        assert ask(store, Store.alone) == len(pauses) + 1 > 1


def test_a_service_answers_at_once_that_its_database_is_away(tmp_path, pauses):
    with open_store(f"sqlite:///{tmp_path}/a.db", is_patient=False) as store:
        assert ask(store, Store.ping) == 1
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
