"""A whole store in one file: from SQLite to PostgreSQL and back, whole or not at all."""

import gzip
import json
from dataclasses import replace

import pytest
from postgresql import new_database

from ncclt.core.api_key import Role, hash_secret, new_secret
from ncclt.errors import InputError, StoreError, UsageError
from ncclt.store import open_store
from ncclt.store.archive import back_up, export_store, import_store
from ncclt.store.location import locate
from ncclt.testing.samples import sample_cluster, sample_recommendation, sample_study, sample_trial, sample_workload


@pytest.fixture
def filled(tmp_path):
    url = f"sqlite:///{tmp_path}/filled.db"
    with open_store(url) as store:
        store.clusters.add(sample_cluster())
        store.workloads.add(sample_workload())
        study = store.studies.open(sample_study())
        for number in range(3):
            store.trials.add(study.id, sample_trial(number))
        store.revisions.publish(sample_recommendation("r1", cluster=study.cluster.name, model=study.workload.name))
    return url


@pytest.fixture
def empty(request, tmp_path):
    """Return a maker of new stores of a kind."""

    def made(kind):
        if kind == "sqlite":
            return f"sqlite:///{tmp_path}/{kind}.db"
        return new_database(request.getfixturevalue("postgresql"))

    return made


def contents(url):
    with open_store(url) as store:
        (study,) = store.studies.page().items
        return (
            store.clusters.entries(),
            store.workloads.entries(),
            study,
            store.trials.find(study.study.id),
            store.recommendations.find(),
        )


@pytest.mark.parametrize("kinds", [("postgresql", "sqlite"), ("sqlite",)], ids="+".join)
def test_a_store_comes_back_as_it_was(filled, empty, kinds, tmp_path):
    known, url = contents(filled), filled
    for number, kind in enumerate(kinds):
        file = tmp_path / f"{number}.jsonl.gz"
        counts = export_store(locate(url), file)
        url = empty(kind)
        assert import_store(locate(url), file) == counts
        assert contents(url) == known
    assert (counts["studies"], counts["trials"], counts["recommendations"]) == (1, 3, 1)
    with open_store(url) as store:  # numbers go on where they ended
        newer = store.revisions.publish(replace(store.recommendations.get("r1"), id="r2", created=""))
        assert newer.revision == 2
        assert store.recommendations.find()[0].id == "r2"


def test_keys_stay_at_home_and_a_backup_has_them(filled, tmp_path):
    with open_store(filled) as store:
        from ncclt.core.api_key import ApiKey

        secret = new_secret()
        key = ApiKey(id="k1", role=Role.READ, clusters=(), note="a launcher", created="2026-01-01", expires="")
        store.keys.add(key, digest=hash_secret(secret))
        assert "keys" not in export_store(locate(filled), tmp_path / "out.gz")
        text = gzip.decompress((tmp_path / "out.gz").read_bytes()).decode()
        assert not {secret, hash_secret(secret)} & {*text.split('"')}  # the history has its id
        keys = store.keys.find()
    back_up(locate(filled), tmp_path / "copy.db")
    assert contents(f"sqlite:///{tmp_path}/copy.db") == contents(filled)
    with open_store(f"sqlite:///{tmp_path}/copy.db") as copy:
        assert copy.keys.find() == keys
        assert hash_secret(secret) in keys


def test_nothing_is_stored_of_a_file_that_is_not_whole(filled, empty, tmp_path):
    good = tmp_path / "good.gz"
    export_store(locate(filled), good)
    lines = gzip.decompress(good.read_bytes()).decode().splitlines(keepends=True)
    head = json.loads(lines[0])
    bad = {
        "cut": gzip.compress("".join(lines[:-1]).encode()),
        "broken off": good.read_bytes()[:-20],
        "lacks a row": gzip.compress("".join([lines[0], *lines[2:]]).encode()),
        "another version": gzip.compress(
            (json.dumps({**head, "migration": "0012"}) + "\n" + "".join(lines[1:])).encode()
        ),
        "no version": gzip.compress(('{"ncclt_store": 1}\n' + "".join(lines[1:])).encode()),
        **{
            f"row {number}": gzip.compress("".join([lines[0], row + "\n", *lines[1:]]).encode())
            for number, row in enumerate(
                ('["keys", []]', '["studies", []]', '["studies", 1]', '[["studies"], []]', "[]")
            )
        },
        "no export": gzip.compress(b'{"a": 1}\n'),
        "no gzip": b"hello",
        "empty": b"",
    }
    url = empty("sqlite")
    for name, content in bad.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError):
            import_store(locate(url), tmp_path / name)
        assert not locate(url).path.exists(), "no empty store is left behind"
    import_store(locate(url), good)
    with pytest.raises(UsageError, match="already"):
        import_store(locate(url), good)


def test_what_is_no_file_of_an_export_is_said_in_words(empty, tmp_path, subtests):
    (tmp_path / "folder").mkdir()
    (tmp_path / "text").write_bytes(b"hello")
    url = empty("sqlite")
    open_store(url).close()
    for name, said, hint in [
        ("none", r"none cannot be read: No such file or directory$", "check the path"),
        ("folder", r"folder cannot be read: Is a directory$", "check the path"),
        ("text", r"text is not an export of a store$", "`ncclt admin store export FILE` writes one"),
    ]:
        with subtests.test(name=name):
            with pytest.raises(InputError, match=said) as refused:
                import_store(locate(url), tmp_path / name)
            assert refused.value.hint == hint


def test_files_are_new_and_whole(filled, tmp_path):
    (tmp_path / "mine").write_text("mine")
    for way in (export_store, back_up):
        with pytest.raises(UsageError, match="exists"):
            way(locate(filled), tmp_path / "mine")
        with pytest.raises(UsageError, match="cannot be written"):
            way(locate(filled), tmp_path / "nowhere" / "x")
    assert (tmp_path / "mine").read_text() == "mine"
    with pytest.raises(StoreError):
        export_store(locate(f"sqlite:///{tmp_path}/none.db"), tmp_path / "x")
    with pytest.raises(UsageError, match="its own backups"):
        back_up(locate("postgresql://a@127.0.0.1:1/b"), tmp_path / "x")
    assert not (tmp_path / "x").exists()
    assert not (tmp_path / "none.db").exists()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
