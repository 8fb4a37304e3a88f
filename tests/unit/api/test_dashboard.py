"""optuna-dashboard behind the guard."""

import optuna
import pytest
from fastapi.testclient import TestClient

from ncclt.errors import NotFoundError
from ncclt.store import open_store
from ncclt_api import dashboard
from ncclt_api.app import create_app
from ncclt_api.dashboard import read_only_url


@pytest.fixture(scope="module")
def searched(profiles, tmp_path_factory):
    """A store with an Optuna study of two trials; nobody may write to it."""
    with open_store(f"sqlite:///{tmp_path_factory.mktemp('searched')}/ncclt.db", profiles=profiles) as store:
        add_study(store)
        yield store


def add_study(store):
    storage = optuna.storages.RDBStorage(store.optuna_url)
    study = optuna.create_study(storage=storage, study_name="bert-leonardo", direction="minimize")
    for value in (3.0, 2.0):
        trial = study.ask()
        trial.suggest_int("channels", 1, 32)
        study.tell(trial, value)
    storage.remove_session()
    storage.engine.dispose()


@pytest.fixture(scope="module")
def service(searched):
    with TestClient(create_app(searched), follow_redirects=False) as client:
        yield client


def test_the_dashboard_shows_the_studies(service):
    page = service.get("/dashboard")
    assert page.headers["content-type"].startswith("text/html")
    assert "unsafe-eval" in page.headers["content-security-policy"]
    assert "unsafe-eval" not in service.get("/").headers["content-security-policy"]
    studies = service.get("/api/studies").json()["study_summaries"]
    assert [study["study_name"] for study in studies] == ["bert-leonardo"]
    assert service.get("/static/bundle.js").status_code == 200


def test_its_page_has_our_stylesheet_and_is_complete(service):
    page = service.get("/dashboard")
    assert page.text.count('<link rel="stylesheet" href="/assets/dashboard.css"></head>') == 1
    assert page.text.rstrip().endswith("</html>")
    assert "last-modified" not in page.headers
    assert service.get("/assets/dashboard.css").status_code == 200
    head = service.head("/dashboard")
    assert (head.status_code, head.content) == (200, b"")
    assert int(head.headers["content-length"]) > 1000


def test_a_study_is_linked_by_its_name(service):
    answer = service.get("/dashboard?study=bert-leonardo")
    assert (answer.status_code, answer.headers["location"]) == (303, "/dashboard/studies/1")
    assert service.get(answer.headers["location"]).status_code == 200
    assert service.get("/dashboard?study=none").status_code == 404


def test_a_client_without_accept_encoding_is_served(searched):
    with TestClient(create_app(searched)) as client:
        del client.headers["accept-encoding"]
        assert client.get("/favicon.ico").status_code == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/api/studies"),
        ("DELETE", "/api/studies/1"),
        ("PUT", "/api/studies/1/note"),
        ("POST", "/dashboard"),
        ("PATCH", "/csv/1"),
    ],
)
def test_nothing_can_be_written_through_it(service, method, path):
    answer = service.request(method, path, json={"study_name": "mine", "directions": ["minimize"]})
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")
    assert answer.headers["content-type"] == "application/problem+json"
    assert len(service.get("/api/studies").json()["study_summaries"]) == 1


@pytest.mark.parametrize("path", ["/api/x", "/api/studies/999/none", "/static/none.js", "/csv/none"])
@pytest.mark.parametrize("accept", ["*/*", "text/html"])
def test_an_unknown_path_of_the_dashboard_is_a_problem(service, path, accept):
    """Its own answer is a page of its framework's."""
    answer = service.get(path, headers={"Accept": accept})
    page = accept == "text/html" and not path.startswith("/api/")
    assert answer.status_code == 404
    assert answer.headers["content-type"].partition(";")[0] == ("text/html" if page else "application/problem+json")
    assert "x-request-id" in answer.headers
    if not page:
        assert answer.json()["instance"] == path


def test_the_database_itself_refuses_to_write(searched):
    storage = optuna.storages.RDBStorage(
        read_only_url(searched.optuna_url), skip_compatibility_check=True, skip_table_creation=True
    )
    with pytest.raises(optuna.exceptions.StorageInternalError):
        storage.create_new_study([optuna.study.StudyDirection.MINIMIZE], "mine")
    storage.remove_session()
    storage.engine.dispose()


def test_looking_creates_nothing(empty_store, tmp_path):
    before = sorted(tmp_path.iterdir())
    with TestClient(create_app(empty_store)) as client:
        answer = client.get("/dashboard")
    assert answer.status_code == 404
    assert answer.json()["detail"] == "there is no study yet"
    assert "ncclt tune" in answer.json()["hint"]
    assert sorted(tmp_path.iterdir()) == before


def test_a_study_that_comes_later_is_seen_without_a_restart(empty_store):
    with TestClient(create_app(empty_store)) as client:
        assert client.get("/dashboard").status_code == 404
        storage = optuna.storages.RDBStorage(empty_store.optuna_url)
        storage.remove_session()
        storage.engine.dispose()
        assert client.get("/dashboard").status_code == 200


def test_a_file_without_tables_is_no_study_yet(empty_store, tmp_path):
    file = tmp_path / "ncclt.optuna.db"
    file.touch()
    assert str(file) in empty_store.optuna_url
    with TestClient(create_app(empty_store)) as client:
        assert client.get("/dashboard").status_code == 404
    assert file.stat().st_size == 0


def test_without_its_packages_the_link_is_absent_and_the_problem_names_the_extra(searched, monkeypatch):
    monkeypatch.setattr(dashboard, "_PACKAGES", ("no_such_package",))
    with TestClient(create_app(searched)) as client:
        assert "/dashboard" not in client.get("/").text
        answer = client.get("/dashboard")
    assert answer.status_code == 404
    assert "ncclt[api]" in answer.json()["hint"]


def test_it_can_be_switched_off(searched):
    with TestClient(create_app(searched, dashboard=False)) as client:
        assert "/dashboard" not in client.get("/").text
        assert client.get("/dashboard").status_code == 404
        assert client.get("/api/studies").status_code == 404


def test_a_server_database_is_opened_read_only_whatever_its_options():
    read_only = "options=-cdefault_transaction_read_only%3Don"
    assert read_only_url("postgresql+psycopg://u@h/d") == f"postgresql+psycopg://u@h/d?{read_only}"
    assert read_only_url("postgresql://u@h/d?connect_timeout=5").endswith(f"&{read_only}")
    assert read_only_url("postgresql://u@h/d?options=-csearch_path%3Doptuna").endswith(
        f"{read_only}%20-csearch_path%3Doptuna"
    )


def test_a_missing_file_is_told_without_making_it(tmp_path):
    with pytest.raises(NotFoundError):
        read_only_url(f"sqlite:///{tmp_path}/none.db")
    assert not (tmp_path / "none.db").exists()
