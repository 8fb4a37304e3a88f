"""Who may do what: every route of the service against every role, and against keys of other clusters."""

import asyncio
import html
import inspect
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
from fastapi import APIRouter
from fastapi.testclient import TestClient

from ncclt.core.api_key import PREFIX, ApiKey, Role, hash_secret, new_secret
from ncclt.core.revision import Actor, ClusterRules
from ncclt.core.tuning_job import TuningJob
from ncclt.errors import StoreError
from ncclt.store.job_queue import JobQueue, prepare
from ncclt.store.part import StorePart
from ncclt_api.access import LAST_KNOWN_S, AccessMiddleware, KnownKeys, declared_role
from ncclt_api.app import ServiceOptions, create_app
from ncclt_api.proxy_users import note_peer, proxy_plan
from ncclt_api.sign_in import Sessions

ENV = "/v1/clusters/leonardo/env?model=bert&nodes=2&gpus_per_node=4&nccl_version=2.22.3&simulated=allow"
JOB = "00000000000000aa"
SECRETS = {(role, cluster): f"{PREFIX}{role}-{cluster}" for role in Role for cluster in ("", "leonardo", "elsewhere")}
PATHS_BY_ROLE = {
    None: ("/healthz", "/readyz", "/client.py", "/sign-in", "POST /sign-in"),
    Role.ENV: (
        *("/v1/clusters/{cluster}/env", "POST /v1/answers"),
        *("POST /v1/attestations", "POST /v1/step-times", "POST /sign-out"),
    ),
    Role.READ: (
        *("/metrics", "/v1/openapi.json", "/v1/clusters", "/v1/clusters/{cluster}", "/v1/clusters/{cluster}/rules"),
        *("/v1/workloads", "/v1/workloads/{name:path}", "/v1/history", "/v1/attestations"),
        *("/v1/studies", "/v1/studies/{id}", "/v1/studies/{id}/trials", "/v1/studies/{id}/evidence"),
        *("/v1/recommendations", "/v1/recommendations/{id}", "/v1/recommendations/{id}/state"),
        *("/v1/roll-outs", "/v1/roll-outs/{id}", "/v1/jobs", "/v1/jobs/{id}", "/v1/jobs/{id}/events"),
        *("/", "/live", "/studies", "/find", "/compare", "/jobs", "/roll-outs", "/roll-outs/{id}"),
        *("/studies/{id}", "/studies/{id}/trials", "/studies/{id}/trials/{number}", "/workloads/{name:path}"),
        *("/clusters/{name:path}", "/clusters/{name:path}/workloads/{model:path}"),
        *("/recommendations", "/recommendations/{id}"),
    ),
    Role.TUNE: (
        *("POST /v1/workloads", "POST /v1/jobs", "POST /v1/jobs/stale", "POST /jobs"),
        *(f"POST {api}/jobs/{{id}}/{verb}" for api in ("/v1", "") for verb in ("cancel", "retry")),
    ),
    Role.APPROVE: (
        *(f"POST /v1/recommendations/{{id}}/{verb}" for verb in ("approve", "activate", "rollback", "pin", "unpin")),
        *("POST /v1/recommendations/{id}/retire", "POST /recommendations/{id}/{verb}"),
        *("POST /v1/roll-outs/{id}/pause", "POST /v1/roll-outs/{id}/resume", "POST /roll-outs/{id}/{verb}"),
    ),
    Role.ADMIN: (
        *("/v1/keys", "POST /v1/keys", "DELETE /v1/keys/{id}"),
        *("PUT /v1/clusters/{cluster}/rules", "POST /clusters/{name:path}/delivery"),
    ),
}
PATHS = {path: role for role, paths in PATHS_BY_ROLE.items() for path in paths}
"""What each route needs; None = nothing."""

OF_NO_CLUSTER = (
    *("/v1/workloads", "/v1/workloads/{name:path}", "POST /v1/workloads", "POST /sign-out", "/v1/openapi.json"),
    *("/v1/keys", "POST /v1/keys", "POST /v1/answers"),
)


@pytest.fixture(scope="module")
def service(samples, profiles, find_routes, tmp_path_factory):
    """The service on a filled store with a key of each role, for all clusters, for leonardo and for another one."""
    from ncclt.store import open_store

    with open_store(f"sqlite:///{tmp_path_factory.mktemp('keys')}/ncclt.db", profiles=profiles) as store:
        samples.fill(store)
        store.revisions.set_rules(ClusterRules(cluster="leonardo", percent=50), Actor(who="ann"))
        found = store.recommendations.get("0c0ffee1")
        store.revisions.publish(samples.revised(found, "0c0ffee9"))
        for (role, cluster), secret in SECRETS.items():
            key = ApiKey(id=f"{role}-{cluster}", role=role, clusters=(cluster,) if cluster else ())
            store.keys.add(key, digest=hash_secret(secret))
        prepare(store.url)
        with JobQueue(store.url) as queue:
            queue.submit(TuningJob(id=JOB, cluster="leonardo", model="bert"))
            queue.cancel(JOB)
        with TestClient(create_app(store, fresh_s=0)) as client:
            client.store = store
            client.routes = {
                (f"{method} " if method != "GET" else "") + route.path: (method, route)
                for route in find_routes(client.app)
                for method in route.methods
            }
            yield client


def ask(service, method, path, secret, **more):
    path = getattr(path, "path", path).replace(":path", "")
    path = path.replace("{name}", "leonardo" if "clusters" in path else "bert").replace("{cluster}", "leonardo")
    ids = {"recommendations": "0c0ffee1", "jobs": JOB, "studies": "5e1f00aa", "keys": "none"}
    path = path.replace("{verb}", "pin").replace("{number}", "0").replace("{model}", "bert")
    if "roll-outs/" in path:
        listed = service.get("/v1/roll-outs", headers={"Authorization": f"Bearer {SECRETS[Role.ADMIN, '']}"})
        ids["roll-outs"] = listed.json()["items"][0]["id"]
    path = path.replace("{id}", next((id for kind, id in ids.items() if kind in path), ""))
    headers = {"Authorization": f"Bearer {secret}"} if secret else {}
    return service.request(method, path, headers=headers, **more)


def test_every_route_has_an_entry(service):
    assert set(service.routes) == set(PATHS)
    assert {name: declared_role(route) for name, (_, route) in service.routes.items()} == PATHS


def test_a_route_without_a_role_is_refused_when_the_application_is_made(monkeypatch):
    bare = APIRouter()
    bare.add_api_route("/open", lambda: "everything")
    monkeypatch.setattr("ncclt_api.app._ROUTERS", (bare,))
    with pytest.raises(TypeError, match=r"/open \(GET\) has to declare one access"):
        create_app("sqlite://")


def test_the_description_names_the_role_of_each_operation(service):
    document = ask(service, "GET", "/v1/openapi.json", SECRETS[Role.READ, ""]).json()
    for name, role in PATHS.items():
        method, path = service.routes[name]
        operation = document["paths"].get(path.path.replace(":path", ""), {}).get(method.lower())
        if operation is not None:
            assert operation.get("security") == (None if role is None else [{"key": [role.value]}]), name
    assert document["components"]["securitySchemes"]["key"]["scheme"] == "bearer"


def test_roles(service):
    wrong = []
    for name, (method, path) in service.routes.items():
        needed = PATHS[name]
        if (ask(service, method, path, None).status_code == 401) != (needed is not None):
            wrong.append((name, "without a key"))
        for role in Role:
            status = ask(service, method, path, SECRETS[role, ""]).status_code
            is_refused = needed is not None and not role.includes(needed)
            if status == 401 or (status == 403) != is_refused:
                wrong.append((name, role, status))
    assert wrong == []


@pytest.fixture(scope="module")
def proxied(service):
    """The same service behind a proxy that signs in a user of each role; each is in a group of its name."""
    users = proxy_plan(["10.0.0.7"], [f"{role}={role}" for role in Role])
    app = create_app(service.store, ServiceOptions(users=users), fresh_s=0)
    with TestClient(note_peer(app), client=("10.0.0.7", 50000)) as client:
        client.store = service.store
        yield client


def test_users_of_a_proxy_read_as_keys_do_and_write_by_forms_alone(service, proxied):
    wrong = []
    for name, (method, path) in service.routes.items():
        needed = PATHS[name]
        is_for_keys = needed is not None and method != "GET" and path.path.startswith("/v1/")
        for role in Role:
            proxied.headers = {"X-Forwarded-Email": f"{role}@example.com", "X-Forwarded-Groups": role.value}
            status = ask(proxied, method, path, None).status_code
            is_refused = not is_for_keys and needed is not None and not role.includes(needed)
            if (status == 401, status == 403) != (is_for_keys, is_refused):
                wrong.append((name, role, status))
        proxied.headers["X-Forwarded-Groups"] = "others"
        if (ask(proxied, method, path, None).status_code == 401) != (needed is not None):
            wrong.append((name, "in no group with a role"))
    assert wrong == []


def test_figures_are_those_of_the_clusters_of_the_key(service):
    text = ask(service, "GET", "/metrics", SECRETS[Role.READ, "leonardo"]).text
    samples = [line for line in text.splitlines() if not line.startswith("#")]
    assert samples
    assert all('cluster="leonardo"' in line for line in samples)
    assert "ncclt_requests_total" in ask(service, "GET", "/metrics", SECRETS[Role.READ, ""]).text


def test_only_readers_of_all_clusters_see_the_link_to_optuna_dashboard(service):
    link = '<a href="http://127.0.0.1:8081">optuna-dashboard</a>'
    with TestClient(create_app(service.store, ServiceOptions(optuna_dashboard_url="http://127.0.0.1:8081"))) as linked:
        for client, cluster, count in ((linked, "leonardo", 0), (linked, "", 1), (service, "", 0)):
            text = ask(client, "GET", "/studies/5e1f00aa?tab=search", SECRETS[Role.READ, cluster]).text
            assert text.count(link) == count


QUERIES = {
    "/v1/clusters/{cluster}/env": dict(part.split("=") for part in ENV.partition("?")[2].split("&")),
    "/v1/attestations": {"recommendation": "0c0ffee1"},
    "POST /v1/workloads": {"name": "uploaded"},
    "/recommendations": {"cluster": "leonardo", "model": "bert"},
    "/compare": {"study": ["5e1f00aa", "5e1f00aa"]},
    "/find": {"q": "leo"},
}


def unquoted(text):
    """Return a page without what it repeats of the query."""
    text = re.sub(r'<option value="leonardo" selected>leonardo|[?&](amp;)?cluster=leonardo', "", text)
    return re.sub(r'<input [^>]*value="leo(nardo)?"|--cluster leonardo', "", text)  # and of examples


LEAKS = re.compile(r"leonardo|5e1f00|0c0ffee|" + JOB)


def test_a_key_of_another_cluster_finds_nothing(service, samples, subtests):
    """What belongs to another cluster does not exist for a key: as an object, in a list, and where a query names it."""
    for name in [name for name in PATHS if PATHS[name] and name not in OF_NO_CLUSTER]:
        with subtests.test(name):
            find_nothing(service, samples, name)


def find_nothing(service, samples, name):
    method, path = service.routes[name]
    ticket = {"ticket": "any"}
    report = samples.attestation(service.store.recommendations.get("0c0ffee1")).to_document() | ticket
    time = {"rollout": service.store.revisions.rollouts()[0].id, "job": "1", "step_us": 1.0, "steps": 1} | ticket
    given = {
        "POST /v1/attestations": report,
        "POST /v1/step-times": time,
        "POST /v1/jobs": {"cluster": "leonardo", "model": "bert"},
        "POST /v1/jobs/stale": {"cluster": "leonardo"},
        "POST /v1/keys": {"clusters": ["leonardo"]},
    }.get(name, {})
    body = {"json": given} if method in ("POST", "PUT") else {}
    if method == "POST" and not path.path.startswith("/v1/"):
        token = service.app.state.sessions.form_token("")
        body = {"data": {"token": token, "cluster": "leonardo", "model": "bert"}, "follow_redirects": False}
    query = QUERIES.get(name, {})
    before = service.store.revisions.history(limit=1)
    for role in Role:
        mores = ({}, {"cluster": "leonardo"}) if method == "GET" and "{" not in path.path else ({},)
        is_page = method == "GET" and not path.path.startswith(("/v1/", "/metrics"))
        for more in (*mores, *({**more, "format": "json"} for more in mores if is_page)):
            answer = ask(service, method, path, SECRETS[role, "elsewhere"], params={**query, **more}, **body)
            if not role.includes(PATHS[name]):
                assert answer.status_code == 403
            elif answer.status_code == 200:
                assert "{" not in path.path or name == "/workloads/{name:path}"
                assert not LEAKS.search(unquoted(answer.text))
            else:
                assert answer.status_code in (404, 422), answer.text
    assert service.store.revisions.history(limit=1) == before


def test_a_key_of_one_cluster_reads_what_is_of_it(service):
    for name in [name for name in PATHS if PATHS[name] and not name.startswith(("POST", "PUT", "DELETE"))]:
        method, path = service.routes[name]
        answer = ask(service, method, path, SECRETS[Role.ADMIN, "leonardo"], params=QUERIES.get(name, {}))
        assert answer.status_code == 200, (name, answer.text)
        if name not in (*OF_NO_CLUSTER, "/live"):  # nothing runs
            assert LEAKS.search(answer.text), name


def test_a_prefix_and_a_typing_mistake_show_no_other_cluster(service):
    for path in ("/v1/studies/5e1f", "/v1/studies/5e1f00ab", "/v1/clusters/leonardi", "/v1/clusters/leonardi/rules"):
        answer = ask(service, "GET", path, SECRETS[Role.READ, "elsewhere"])
        assert answer.status_code == 404
        assert not re.search("5e1f00a[^b]|leonardo", answer.text)


def test_a_launcher_s_key_gets_answers_and_reports_and_reads_nothing_else(service):
    secret = SECRETS[Role.ENV, ""]
    assert ask(service, "GET", ENV, secret).status_code == 200
    read = [name for name, role in PATHS.items() if role and not name.startswith(("POST", "PUT", "DELETE"))]
    allowed = [name for name in read if ask(service, *service.routes[name], secret).status_code != 403]
    assert allowed == ["/v1/clusters/{cluster}/env"]


CHECKS_SCOPE = re.compile(
    r"self\.(_scope|_reading|_within|_is_visible|_require_visible|_is_shown|_newest_first|_require_study|_row|_changing_row|_visible_rollouts|_candidate|_rollout|_require_roll_outs"
    r"|_recommendation|_clusters|statuses)\b"
)
OF_NO_SCOPE = {
    *("Store.alone", "Store.require_writable", "Store.migration", "Store.counts"),
    *("Jobs.enter_worker", "Jobs.renew_worker", "Jobs.leave_worker", "Jobs.bury_workers", "Jobs.note_failed"),
    *("Recommendations.changes", "Records.add_verification"),
}


def test_every_method_of_the_store_checks_its_scope_or_refuses_it(filled_store):
    seen = filled_store.within(("leonardo",))
    for name in ("keys", "leases", "url", "optuna_url"):
        with pytest.raises(AttributeError):
            getattr(seen, name)
    parts = [value for value in vars(seen).values() if isinstance(value, StorePart)]
    assert len(parts) == 8
    refused, unchecked = set(), set()
    for part in (seen, *parts):
        for name, method in inspect.getmembers(part, inspect.ismethod):
            if name.startswith("_"):
                continue
            word = f"{type(part).__name__}.{name}"
            if word in OF_NO_SCOPE:
                with pytest.raises(AttributeError, match=f"{word} knows no scope"):
                    method()
                refused.add(word)
            elif not CHECKS_SCOPE.search(inspect.getsource(method)):
                unchecked.add(word)
    assert refused == OF_NO_SCOPE
    # Workloads belong to no cluster, and the secret of tickets neither.
    assert unchecked == {"Store.close", "Store.ticket_secret", "Store.within", "Workloads.add"}


def test_closing_a_scope_leaves_the_store_open(filled_store):
    with filled_store.within(("leonardo",)) as seen:
        secret = seen.ticket_secret()
    assert filled_store.ticket_secret() == secret
    assert filled_store.clusters.entries()
    assert "_ticket_secret" in vars(filled_store)  # read once for all scopes


def test_stale_jobs_are_renewed_on_the_clusters_of_the_key_alone(service):
    secret = SECRETS[Role.ADMIN, "elsewhere"]
    assert ask(service, "POST", "/v1/jobs/stale", secret, json={}).json() == {"items": []}
    assert ask(service, "POST", "/v1/jobs/stale", secret, json={"cluster": "leonardo"}).status_code == 404


def test_the_pages_of_a_key_of_one_cluster_link_only_to_what_it_may_see(service):
    secret = SECRETS[Role.READ, "leonardo"]
    pages = ("/", "/studies/5e1f00aa", "/recommendations/0c0ffee1", "/clusters/leonardo")
    for page in pages:
        text = ask(service, "GET", page, secret).text
        for link in sorted(set(re.findall(r'<a [^>]*href="(/[^"#]*)', text))):
            status = ask(service, "GET", html.unescape(link), secret).status_code
            assert status == (404 if link == "/workloads/resnet101" else 200), (page, link)  # not in the catalogue


@pytest.mark.parametrize(
    "authorization",
    [
        *("", "Bearer", "Bearer ", f"Bearer {PREFIX}wrong", "Basic abc", f"Bearer {'x' * 100_000}", "Bearer a b c"),
        *("Bearer \u00fc".encode(), f"bearer {hash_secret(SECRETS[Role.ADMIN, ''])}"),
    ],
)
def test_what_is_no_key_is_401_and_says_how_to_get_one(service, authorization):
    answer = service.get(ENV, headers={"Authorization": authorization})
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, 'Bearer realm="ncclt"')
    assert answer.json()["type"] == "urn:ncclt:problem:unauthorized"
    assert "POST /v1/keys creates one" in answer.json()["hint"]
    assert "x" * 300 not in answer.text


def test_a_kept_answer_needs_a_key_too_and_a_revoked_or_expired_one_gets_nothing(service):
    for name, expires in (("short", "2999-01-01"), ("old", "2020-01-01")):
        service.store.keys.add(ApiKey(id=name, role=Role.READ, expires=expires), digest=hash_secret(name))
    assert ask(service, "GET", ENV, "short").status_code == 200
    assert service.get(ENV).status_code == 401
    service.store.keys.revoke("short", now="2026-11-22")
    for name, reason in (("short", "was revoked"), ("old", "has expired")):
        refused = ask(service, "GET", ENV, name)
        assert (refused.status_code, refused.json()["detail"]) == (401, f"the key {name} {reason}")


def test_a_page_of_another_host_may_not_write(service):
    headers = {"Authorization": f"Bearer {SECRETS[Role.ADMIN, '']}"}
    for origin, status in (("https://elsewhere.example", 403), ("http://testserver", 422)):
        assert service.post("/v1/attestations", json={}, headers=headers | {"Origin": origin}).status_code == status


def test_without_keys_only_known_names_are_answered_to(filled_store):
    known, unknown = ("127.0.0.1:8080", "localhost", "[::1]:9"), ("rebound.example", "127.0.0.1.evil", "")
    options = ServiceOptions(hosts=("127.0.0.1", "localhost", "[::1]"))
    with TestClient(create_app(filled_store, options)) as service:
        for host in (*known, *unknown):
            status = service.get("/v1/studies", headers={"Host": host}).status_code
            assert status == (200 if host in known else 421), host


class Keys:
    """Keys of a store that can be away."""

    asked, away = 0, False

    def find(self):
        self.asked += 1
        if self.away:
            raise StoreError("away")
        return {hash_secret("mine"): ApiKey(id="a", role=Role.READ)}


@pytest.fixture
def stored():
    """Return the keys of a store, a clock, and the function that makes the known keys of a service."""
    keys, now = Keys(), [0.0]
    store = SimpleNamespace(keys=keys)
    return keys, now, lambda fresh_s: KnownKeys(lambda: store, fresh_s=fresh_s, clock=lambda: now[0])


def test_the_last_known_keys_hold_while_the_database_is_away(stored):
    keys, now, known = stored

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})

    access = AccessMiddleware(app, keys=known(0), sessions=Sessions())

    async def status(secret):
        sent = []

        async def send(message):
            sent.append(message)

        headers = [(b"authorization", f"Bearer {secret}".encode())]
        scope = {"type": "http", "method": "GET", "path": "/v1/studies", "query_string": b"", "headers": headers}
        await access(scope, None, send)
        return sent[0]["status"]

    async def test():
        assert [await status("mine"), await status("other")] == [200, 401]
        keys.away = True
        now[0] += 3600
        assert [await status("mine"), await status("other")] == [200, 401]
        now[0] += LAST_KNOWN_S
        assert await status("mine") == 503

    asyncio.run(test())


def test_a_database_that_is_away_is_not_asked_for_keys_at_every_request(stored):
    keys, now, known = stored
    known = known(0.5)

    async def test():
        await asyncio.gather(*(known.current() for _ in range(20)))
        keys.away, now[0] = True, 10.0
        for answer in await asyncio.gather(*(known.current() for _ in range(100))):
            assert hash_secret("mine") in answer
        for _ in range(100):
            assert hash_secret("mine") in await known.current()
        assert keys.asked == 2

    asyncio.run(test())


def test_the_secret_is_nowhere_in_the_store(service):
    assert all(secret not in str(service.store.keys.find()) for secret in SECRETS.values())
    assert replace(ApiKey(id="a", role=Role.READ)).to_document()["role"] == "read"
    assert len(new_secret()) >= len(PREFIX) + 43
    assert new_secret() != new_secret()
