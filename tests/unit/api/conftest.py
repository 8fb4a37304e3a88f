"""A filled store behind a running application."""

import contextlib
import importlib.util
import threading
import time
from pathlib import Path

import pytest
import uvicorn
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient
from sqlalchemy import Engine, event

from ncclt.store import open_store
from ncclt_api.app import create_app


@pytest.fixture(scope="session")
def samples():
    """The module of hand-made studies."""
    spec = importlib.util.spec_from_file_location("api_samples", Path(__file__).parent / "samples.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def profiles(samples, tmp_path_factory):
    """A folder of shipped files with the cluster leonardo and the workload bert."""
    return samples.store_profiles(tmp_path_factory.mktemp("shipped") / "profiles")


@pytest.fixture
def empty_store(tmp_path, profiles):
    """A fresh SQLite store."""
    with open_store(f"sqlite:///{tmp_path}/ncclt.db", profiles=profiles) as store:
        yield store


@pytest.fixture(scope="session")
def filled_store(samples, profiles, tmp_path_factory):
    """A SQLite store with three studies; read only by its tests."""
    folder = tmp_path_factory.mktemp("filled")
    with open_store(f"sqlite:///{folder}/ncclt.db", profiles=profiles) as store:
        samples.fill(store)
        yield store


@pytest.fixture
def own_store(empty_store, samples):
    """A SQLite store with the same studies, for a test that changes it."""
    samples.fill(empty_store)
    return empty_store


@pytest.fixture
def empty_client(empty_store):
    """The service on a fresh store."""
    with TestClient(create_app(empty_store, fresh_s=0)) as client:
        yield client


@pytest.fixture
def own_client(own_store):
    """The service on a filled store of its own."""
    with TestClient(create_app(own_store, fresh_s=0)) as client:
        yield client


@pytest.fixture
def client(filled_store):
    """The service on the filled store."""
    with TestClient(create_app(filled_store, fresh_s=0)) as client:
        yield client


@pytest.fixture(scope="session")
def post_form():
    """Return a function that posts a form with the token of a browser without a session."""

    def post(browser, path, **fields):
        token = browser.app.state.sessions.form_token("")
        return browser.post(path, data={"token": token, **fields}, follow_redirects=False)

    return post


@pytest.fixture(scope="session")
def find_routes():
    """Return a function that lists every route of every router of an application, however deep it is kept."""

    def find(app):
        routes, queue = [], list(app.routes)
        while queue:
            route = queue.pop()
            routes += [route] * isinstance(route, APIRoute)
            queue += getattr(getattr(route, "original_router", None), "routes", [])
        return routes

    return find


@pytest.fixture
def statements():
    """The statements that databases are asked from now on."""
    asked = []

    def note(_connection, _cursor, statement, *_others):
        asked.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    yield asked
    event.remove(Engine, "before_cursor_execute", note)


@pytest.fixture(scope="session")
def serving():
    """Return a context manager that serves an application on loopback and gives its address."""

    @contextlib.contextmanager
    def served(app):
        server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            while not server.started:
                assert thread.is_alive()
                time.sleep(0.01)
            yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()

    return served


@pytest.fixture
def live(filled_store, serving):
    """The address of the service on the filled store."""
    with serving(create_app(filled_store, fresh_s=0)) as url:
        yield url
