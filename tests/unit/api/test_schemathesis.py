"""What the service's own description allows, and what it forbids: no request ends in a server error."""

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode

from ncclt.core.api_key import PREFIX, ApiKey, Role, hash_secret
from ncclt.core.revision import Actor, ClusterRules
from ncclt.core.tuning_job import TuningJob
from ncclt.store import open_store
from ncclt.store.job_queue import JobQueue, prepare
from ncclt_api.app import create_app

EXAMPLES = 6
"""Of each operation, with and without its rules obeyed; `schemathesis run` asks a real server more."""

PATIENT_S = 120
JOB = "00000000000000aa"
SECRET = f"{PREFIX}schemathesis"
KNOWN = {"recommendations": "0c0ffee1", "jobs": JOB, "studies": "5e1f00aa"}
OPERATIONS = [
    operation.ok()
    for operation in schemathesis.openapi.from_dict(create_app("sqlite://").openapi()).get_all_operations()
]
INJECTED = (
    *("..%2f..%2fetc%2fpasswd", "%00", "%ff%fe", "'%20OR%201=1--", "%22%3E%3Cscript%3E", "%0d%0aX-Evil:%201"),
    *("%E2%80%AE", "$(id)", "{{7*7}}", "%25s%25n", "a" * 4000),
)


@pytest.fixture(scope="module")
def url(samples, profiles, serving, tmp_path_factory):
    """The address of the service on a filled store with one key, a roll-out and a job."""
    with open_store(f"sqlite:///{tmp_path_factory.mktemp('schemathesis')}/ncclt.db", profiles=profiles) as store:
        samples.fill(store)
        store.revisions.set_rules(ClusterRules(cluster="leonardo", percent=50), Actor(who="ann"))
        store.keys.add(ApiKey(id="admin", role=Role.ADMIN), digest=hash_secret(SECRET))
        prepare(store.url)
        with JobQueue(store.url) as queue:
            queue.submit(TuningJob(id=JOB, cluster="leonardo", model="bert"))
            queue.cancel(JOB)
        with serving(create_app(store, fresh_s=0)) as url:
            yield url


@pytest.fixture(scope="module")
def session():
    with requests.Session() as session:
        session.trust_env = False
        yield session


def known(path, names):
    """Parts of a path that exist in the store."""
    values = {"cluster": "leonardo", "name": "bert", "id": next((KNOWN[kind] for kind in KNOWN if kind in path), "")}
    return {name: values[name] for name in names}


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.label)
def test_no_request_ends_in_a_server_error(url, session, operation):
    modes = [GenerationMode.POSITIVE]
    if operation.body or operation.query or operation.path_parameters or operation.headers:
        modes.append(GenerationMode.NEGATIVE)
    cases = st.one_of([operation.as_strategy(generation_mode=mode) for mode in modes])

    @seed(14)
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases, exists=st.booleans(), has_key=st.sampled_from((True, True, True, False)))
    def ask(case, exists, has_key):
        if exists and case.path_parameters:
            case.path_parameters = known(operation.path, case.path_parameters)
        headers = {"Authorization": f"Bearer {SECRET}"} if has_key else {}
        answer = case.call(base_url=url, session=session, headers=headers, timeout=PATIENT_S)
        assert answer.status_code < 500, (case.as_curl_command(), answer.text)

    ask()


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.label)
def test_no_name_or_header_is_more_than_a_text(url, session, operation):
    for text in INJECTED:
        path = operation.path
        for name in known(path, ("cluster", "name", "id")):
            path = path.replace(f"{{{name}}}", text)
        plain = requests.utils.unquote(text).encode("utf-8", "replace")
        headers = {"Authorization": f"Bearer {SECRET}", "If-None-Match": plain, "Accept": plain, "X-Request-ID": plain}
        headers = {k: v for k, v in headers.items() if k == "Authorization" or not set(v) & set(b"\r\n\0")}
        answer = session.request(
            operation.method.upper(),
            f"{url}{path}?model={text}&cursor={text}&name={text}",
            headers=headers,
            timeout=PATIENT_S,
        )
        assert answer.status_code < 500, (path, answer.text)
        assert "X-Evil" not in answer.headers
        if answer.headers["Content-Type"].startswith("text/html"):
            assert "<script>" not in answer.text
