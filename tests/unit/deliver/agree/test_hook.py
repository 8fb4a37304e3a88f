"""The protocol over stores that fail, and where the hook lies."""

import json
import threading

import pytest
from memory_store import Store

from ncclt.deliver.agree import agreement_environment, hook_path, write_hook
from ncclt.deliver.agree.injected.hook import IN_DOUBT, KEEP_DEFAULT, USE_TABLE, agree
from ncclt.errors import UsageError

FACTS = {"plugin": "1 (a)", "nccl": "2.28.9", "table": "t", "host": "h", "problem": ""}
PREFIX = "p"


def run(store, rank, ranks, timeout_s=0.2, **changes):
    told = []
    facts = {**FACTS, **changes}
    agree(store, rank, ranks, facts=facts, decide=told.append, prefix=PREFIX, timeout_s=timeout_s)
    (decision,) = told
    return decision


def run_all(store, ranks, changes=None, absent=()):
    found = {}

    def one(rank):
        found[rank] = run(store, rank, ranks, **((changes or {}).get(rank, {})))

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(ranks) if rank not in absent]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_equal_ranks_use_the_table(capfd):
    assert set(run_all(Store(), 5).values()) == {USE_TABLE}
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("odd", [0, 1, 4])
@pytest.mark.parametrize("changes", [{"plugin": "2"}, {"table": "u"}, {"nccl": "2.29.7"}, {"problem": "none here"}])
def test_the_odd_rank_is_named_whichever_it_is(capfd, odd, changes):
    assert set(run_all(Store(), 5, {odd: changes}).values()) == {KEEP_DEFAULT}
    (line,) = capfd.readouterr().err.splitlines()
    assert f": rank {odd} on h" in line


@pytest.mark.parametrize("absent", [0, 3])
def test_a_missing_rank_leaves_all_with_the_default_and_one_line(capfd, absent):
    assert set(run_all(Store(), 4, absent=(absent,)).values()) == {KEEP_DEFAULT}
    assert len(capfd.readouterr().err.splitlines()) == 1


def test_a_rank_that_comes_after_the_decision_takes_it(capfd):
    store = Store()
    run_all(store, 3, absent=(2,))
    assert run(store, 2, 3) == KEEP_DEFAULT


def test_a_rank_that_lost_the_store_before_it_offered_keeps_the_default():
    assert run(Store(lambda operation: "probe" in operation), 1, 2) == KEEP_DEFAULT


def test_a_rank_that_lost_the_store_after_it_offered_is_in_doubt(capfd):
    """Rank 0 may have decided to use the table: no guess is safe."""
    for lost in ("facts/1", "check", "decision"):
        assert run(Store(lambda operation, lost=lost: lost in operation), 1, 2) == IN_DOUBT
    assert "before it knew" in capfd.readouterr().err


def test_a_rank_that_offered_nothing_is_never_in_doubt():
    assert run(Store(lambda operation: "decision" in operation), 1, 2, problem="none here") == KEEP_DEFAULT


def test_a_rank_whose_earlier_offer_was_used_with_another_table_is_in_doubt():
    store = Store()
    store.values[f"{PREFIX}/facts/1"] = json.dumps({**FACTS, "table": "earlier"}, sort_keys=True)
    store.values[f"{PREFIX}/decision"] = "use"
    assert run(store, 1, 2) == IN_DOUBT
    assert run(store, 1, 2, table="earlier") == USE_TABLE


def test_hook_is_placed_once_and_read_by_all(tmp_path):
    first = hook_path(tmp_path / "new")
    write_hook(first)
    written = (first / "sitecustomize.py").stat()
    write_hook(hook_path(tmp_path / "new"))
    assert (first / "sitecustomize.py").stat().st_ino == written.st_ino
    assert [path.name for path in (tmp_path / "new").iterdir()] == [first.name]
    assert sorted(str(path.relative_to(first)) for path in first.rglob("*.py")) == [
        "_ncclt_agreement/__init__.py",
        "_ncclt_agreement/experiment.py",
        "_ncclt_agreement/hook.py",
        "_ncclt_agreement/levels.py",
        "_ncclt_agreement/live.py",
        "_ncclt_agreement/live_director.py",
        "_ncclt_agreement/start.py",
        "_ncclt_agreement/when_imported.py",
        "sitecustomize.py",
    ]
    assert {path.stat().st_mode & 0o777 for path in [first, *first.rglob("*")]} == {0o700, 0o755, 0o644}


def test_hook_comes_first_and_leaves_the_users_path(tmp_path):
    assert agreement_environment(tmp_path, {"PYTHONPATH": "/mine"}) == {
        "NCCLT_AGREEMENT": "hook",
        "PYTHONPATH": f"{tmp_path}:/mine",
    }
    with pytest.raises(UsageError, match="':'"):
        agreement_environment(tmp_path / "a:b", {})
