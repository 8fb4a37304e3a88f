"""What docker-compose.yml starts, as plain processes: its commands and variables, a real PostgreSQL and a real nginx.

Only addresses are replaced: the names of compose's network by loopback, and ports by free ones.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import yaml
from ports import free_port
from postgresql import new_database
from waiting import until

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parents[2]
NGINX = shutil.which("nginx", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")
WITHIN_S = 240.0
ENV = "/v1/clusters/mi355x-2x8/env?model=bert&nodes=2&gpus_per_node=8&nccl_version=2.28.3&format=json"


def ask(url, body=None):
    """Return (status, headers, text); None where nothing listens."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"} if data else {})
    try:
        with urllib.request.urlopen(request, timeout=WITHIN_S) as answer:
            return answer.status, answer.headers, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, error.read().decode()
    except (urllib.error.URLError, ConnectionError):
        return None


class Compose:
    """Runs the services of the file in a folder."""

    def __init__(self, folder, start, database):
        self.services = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]
        self._folder, self._start, self._database = folder, start, database
        self.ports = {name: free_port() for name in ("api-1", "api-2", "nginx", "optuna-dashboard")}

    def _environ(self, name):
        # As compose reads them where nobody has set a variable: ${NAME:-default} is the default.
        variables = {
            name: re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)
            for name, text in self.services[name]["environment"].items()
        }
        assert re.fullmatch(r"postgresql://ncclt:\S+@db:5432/ncclt", variables["NCCLT_STORAGE"])
        inherited = {name: value for name, value in os.environ.items() if name != "NCCLT_ALLOW"}
        return {**inherited, **variables, "NCCLT_STORAGE": self._database, "OMP_NUM_THREADS": "1"}

    def _argv(self, name):
        program, *words = self.services[name]["command"]
        assert program == "ncclt"
        words = ["127.0.0.1" if word == "0.0.0.0" else word for word in words]
        port = ["--port", str(self.ports[name])] if name in self.ports else []
        return [sys.executable, "-m", "ncclt", *words, *port]

    def run(self, name):
        """Run a service that ends."""
        subprocess.run(self._argv(name), env=self._environ(name), cwd=self._folder, check=True, timeout=WITHIN_S)

    def start(self, name):
        """Start a service that stays; its log is NAME.txt."""
        argv = self._argv_of_nginx() if name == "nginx" else self._argv(name)
        environ = dict(os.environ) if name == "nginx" else self._environ(name)
        with (self._folder / f"{name}.txt").open("w") as log:
            return self._start(argv, env=environ, stdout=log, stderr=log, cwd=self._folder)

    def start_dashboard(self):
        """Start optuna-dashboard, from the venv of the tests and not from its image."""
        program, url, host, port = self.services["optuna-dashboard"]["command"]
        found = re.fullmatch(r"postgresql://ncclt:\S+@db:5432/ncclt\?(\S+)", url)
        assert (program, host, port) == ("optuna-dashboard", "--host=0.0.0.0", "--port=8080")
        url = f"{self._database}{'&' if '?' in self._database else '?'}{found[1]}"
        words = [url, "--host=127.0.0.1", f"--port={self.ports['optuna-dashboard']}"]
        with (self._folder / "optuna-dashboard.txt").open("w") as log:
            argv = [str(Path(sys.executable).with_name(program)), *words]
            return self._start(argv, env=dict(os.environ), stdout=log, stderr=log, cwd=self._folder)

    def _argv_of_nginx(self):
        text = (ROOT / "api/deploy/nginx.conf").read_text(encoding="utf-8")
        text, count = re.subn(r"(api-[12]):8080 resolve", lambda m: f"127.0.0.1:{self.ports[m[1]]}", text)
        assert count == 2
        text, count = re.subn(r"listen 8080;", f"listen 127.0.0.1:{self.ports['nginx']};", text)
        assert count == 1
        path = self._folder / "nginx.conf"
        path.write_text(text.replace("/tmp/", f"{self._folder}/"))
        program, flag, file, *words = self.services["nginx"]["command"]
        assert (program, flag, file) == ("nginx", "-c", "/etc/nginx/nginx.conf")
        # The rest as in an image of a user without rights: as root, nginx would change to another user.
        own = "user root; " if os.geteuid() == 0 else ""
        return [NGINX, "-c", str(path), *[word.replace("daemon off;", f"{own}daemon off;") for word in words]]

    def url(self, name, path=""):
        return f"http://127.0.0.1:{self.ports[name]}{path}"

    def log(self, name):
        return (self._folder / f"{name}.txt").read_text()


@pytest.fixture
def compose(tmp_path, start, postgresql):
    if NGINX is None:
        pytest.skip("nginx is not installed")
    return Compose(tmp_path, start, new_database(postgresql))


def test_a_job_is_tuned_and_served_through_nginx(compose):
    compose.run("migrate")
    replicas = [compose.start(name) for name in ("api-1", "api-2")]
    compose.start("worker")
    compose.start("nginx")
    for name in ("api-1", "api-2", "nginx"):
        until(lambda name=name: (ask(compose.url(name, "/readyz")) or (0,))[0] == 200)

    job = {"cluster": "mi355x-2x8", "model": "bert", "trials": 30, "blocks": 3}
    answer = until(lambda: submitted(compose.url("nginx", "/v1/jobs"), job))
    status, head, text = ask(compose.url("nginx", f"/v1/jobs/{answer['id']}/events"))
    assert (status, head.get_content_type()) == (200, "text/event-stream")
    assert "event: end" in text
    ended = json.loads(ask(compose.url("nginx", f"/v1/jobs/{answer['id']}"))[2])
    assert ended["state"] == "done", (ended, compose.log("worker"))

    assert ask(compose.url("nginx", ENV))[0] == 409, "a recording is given only on request"
    answers = [ask(compose.url(name, f"{ENV}&recorded=allow")) for name in ("nginx", "api-1", "api-2")]
    assert [status for status, *_ in answers] == [200, 200, 200], answers
    assert len({text for *_, text in answers}) == 1
    status, head, text = answers[0]
    assert head["X-NCCLT-Recorded"] == "true"
    assert json.loads(text)["recommendation"] == ended["result"]["recommendation"]

    assert asked_by(compose, "203.0.113.9") == {"127.0.0.1"}, "the service logs nginx's word, not the client's"

    assert_limits(compose)

    compose.start_dashboard()
    _, _, text = until(lambda: ask(compose.url("optuna-dashboard", "/api/studies")))
    names = [study["study_name"] for study in json.loads(text)["study_summaries"]]
    assert [name.removesuffix(" (proof)") for name in names] == [names[0]] * len(names)
    assert (
        ask(compose.url("optuna-dashboard", "/api/studies"), {"study_name": "x", "directions": ["minimize"]})[0] >= 400
    )

    replicas[0].terminate()
    replicas[0].wait(WITHIN_S)
    assert [ask(compose.url("nginx", f"{ENV}&recorded=allow"))[0] for _ in range(6)] == [200] * 6


def submitted(url, job):
    """Queue a job; None while the worker has not made the tables of the queue."""
    found = ask(url, job)
    assert found[0] in (201, 503), found
    return json.loads(found[2]) if found[0] == 201 else None


def assert_limits(compose):
    """nginx refuses a flood of sign-ins and of changes, and neither environments nor reports of jobs."""

    def statuses(path, times, body=None):
        found = [ask(compose.url("nginx", path), body) for _ in range(times)]
        refused = [head["Retry-After"] for status, head, _ in found if status == 429]
        assert set(refused) <= {"60"}
        return [status for status, *_ in found]

    signed_in = statuses("/sign-in", 30, {})
    assert (signed_in[0] != 429, signed_in.count(429) >= 10) == (True, True), signed_in
    changed = statuses("/v1/recommendations/none/pin", 200, {})
    assert (changed[0], changed.count(429) >= 20) == (404, True), changed
    assert set(statuses(f"{ENV}&recorded=allow", 200)) == {200}
    assert set(statuses("/v1/step-times", 200, {})) == {422}
    assert 429 not in statuses("/sign-in", 30), "the page is read as often as anyone likes"


def asked_by(compose, claimed):
    """The addresses that the replicas logged for requests whose client claims another one."""
    for _ in range(4):
        request = urllib.request.Request(
            compose.url("nginx", "/healthz"), headers={"X-Forwarded-For": claimed, "X-Request-ID": "claims"}
        )
        with urllib.request.urlopen(request, timeout=WITHIN_S) as answer:
            assert answer.headers["X-Request-ID"] == "claims"

    def logged():
        lines = [line for name in ("api-1", "api-2") for line in compose.log(name).splitlines()]
        return {json.loads(line)["client"] for line in lines if '"request_id": "claims"' in line}

    return until(logged)
