"""The client against real servers on loopback: good, refusing, broken, foreign, hanging, absent."""

import ast
import json
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from answering_server import GOOD, PROBLEM, SENT, reply, serving
from hostile_server import document

import ncclt.client.fetch
from ncclt.client.fetch import ClientError, fetch_env, fetch_recommendation
from ncclt.client.report import post_attestation, post_step_time
from ncclt.deliver.render.formats import FORMATS


def fetch(url, **options):
    return fetch_env(url, **{"cluster": "leonardo", "model": "bert", "timeout_s": 5.0, **options})


def test_a_good_answer_is_returned_as_it_is():
    with serving(reply()) as server:
        fetched = fetch(server.url + "/", nodes=2, gpus_per_node=4, nccl_version="2.28.9", api_key="k-1")

    assert (fetched.text, fetched.source, fetched.warning) == (GOOD, "server", "")
    assert server.seen[0].path == (
        "/v1/clusters/leonardo/env?model=bert&nodes=2&gpus_per_node=4&nccl_version=2.28.9&format=json"
    )
    assert server.seen[0].headers["Authorization"] == "Bearer k-1"


def test_names_are_quoted_and_what_was_not_said_is_not_asked():
    names = {"cluster": "a/../b?c", "model": "x&format=json#é"}
    with serving(reply(body=json.dumps({**json.loads(SENT), **names}))) as server:
        fetch(server.url + "/tuner", **names)

    assert server.seen[0].path == "/tuner/v1/clusters/a%2F..%2Fb%3Fc/env?model=x%26format%3Djson%23%C3%A9&format=json"


def test_a_name_that_is_looked_up_for_ever_keeps_no_program_alive():
    """A resolver has no time limit and cannot be interrupted: the thread that waits for it must end with the job."""
    script = """if True:
        import socket, threading
        from ncclt.client.fetch import ClientError, fetch_env
        socket.getaddrinfo = lambda *_, **__: threading.Event().wait()
        try:
            fetch_env("http://tuner.example", cluster="pair", model="toy", timeout_s=0.1)
        except ClientError as error:
            print(error)
    """
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert (ended.returncode, ended.stdout) == (0, "tuner.example did not answer within 0.1 s\n")


def test_an_address_that_is_none_is_refused_before_anything_is_sent(subtests):
    for server in [
        "",
        "file:///etc/passwd",
        "http://",
        "http://u:p@h",
        "http://a b",
        "http://h\r\nX: y",
        "http://[::1",
    ]:
        with subtests.test(server=server):
            with pytest.raises(ClientError, match="not a server address") as caught:
                fetch(server)
            assert not caught.value.is_outage


def test_a_key_with_a_line_break_is_refused():
    with pytest.raises(ClientError, match="API key"):
        fetch("http://127.0.0.1:9", api_key="a\r\nX-Evil: 1")


def test_the_key_does_not_travel_along_a_redirect():
    with serving(reply()) as other, serving(reply(302, "", Location=other.url + "/elsewhere")) as first:
        assert fetch(first.url, api_key="secret").text == GOOD

    assert first.seen[0].headers["Authorization"] == "Bearer secret"
    assert "Authorization" not in other.seen[0].headers


@pytest.mark.parametrize(("error", "said"), [(OSError("no route to it"), "no route to it"), (OSError(), "URLError")])
def test_an_outage_is_told_in_the_words_of_the_system_or_by_its_name(monkeypatch, error, said):
    def look_up(*_arguments, **_options):
        raise error

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    with pytest.raises(ClientError) as caught:
        fetch("http://tuner.example")
    assert caught.value.message == f"tuner.example cannot be reached: {said}"


def test_being_away_broken_or_too_busy_is_an_outage_and_every_other_status_an_answer(subtests):
    for status, is_outage in [
        (None, True),
        (428, False),
        (429, True),
        (499, False),
        (500, True),
    ]:
        with subtests.test(status=status, is_outage=is_outage):
            assert ClientError("refused", status=status).is_outage is is_outage


GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "env"
FORMS = {
    "export-fish": ("export", {"shell": "fish"}),
    "export-csh": ("export", {"shell": "csh"}),
    "unset-bash": ("export", {"unset": True}),
    "unset-fish": ("export", {"shell": "fish", "unset": True}),
    "unset-csh": ("export", {"shell": "csh", "unset": True}),
    "megatron-yaml": ("megatron-yaml", {"group": "tp"}),
}


def test_what_the_client_writes_is_what_the_renderer_of_ncclt_writes(subtests):
    for path in sorted(GOLDEN.iterdir()):
        with subtests.test(path=path):
            case, _, form = path.name.partition(".")
            format, options = FORMS.get(form, (form, {}))
            sent = path if format in ncclt.client.answer.TABLES else GOLDEN / f"{case}.json"
            with serving(reply(body=sent.read_text())) as server:
                text = fetch(server.url, format=format, allow=["simulated"], **options).text

            if format == "json":
                assert json.loads(text) == json.loads(path.read_text())
            else:
                assert text == path.read_text()
                # A TaskProlog is a file and no text for `eval`; what it says of itself was written here.
                remarks = [line for line in text.splitlines() if line.startswith("# ") and format != "slurm-taskprolog"]
                assert not re.search(r"[;<>()$`'\"\\!*?~|&{}\[\]]", "".join(remarks))


@pytest.mark.parametrize("format", ["export", "json", "tuner-csv"])
def test_a_simulated_answer_that_was_not_asked_for_is_refused_whoever_sends_it(format):
    sent = GOLDEN / f"tuned.{format if format == 'tuner-csv' else 'json'}"
    with serving(reply(body=sent.read_text())) as server:
        for allow in ([], ["recorded"]):
            with pytest.raises(ClientError, match="SIMULATED, which this job does not allow"):
                fetch(server.url, format=format, allow=allow)
        assert fetch(server.url, format=format, allow=["simulated"]).text
        with pytest.raises(ClientError, match="nothing can be allowed as 'all'"):
            fetch(server.url, allow=["all"])
    assert "simulated=allow" in server.seen[-1].path


def test_every_format_of_the_renderer_is_one_of_the_client():
    assert {form.partition(" ")[0] for form in ncclt.client.answer.FORMS} == set(FORMATS)


def test_an_undecided_answer_is_no_environment():
    undecided = reply(body=json.dumps(document(decision="undecided", remarks=["r-1: too noisy"], variables={})))
    with serving(undecided) as server:
        with pytest.raises(ClientError, match="undecided: r-1: too noisy") as caught:
            fetch(server.url)
        assert json.loads(fetch(server.url, format="json").text)["decision"] == "undecided"
    assert (caught.value.is_outage, caught.value.status) == (False, 404)


def test_groups_measured_together_are_refused_with_the_way_to_measure_one():
    answer = document(groups=[[4, False], [8, True]])
    together = pytest.raises(ClientError, match="groups of 4 ranks inside a node and of 8 ranks across")
    with serving(reply(body=json.dumps(answer))) as server, together as caught:
        fetch(server.url, format="pg-options")
    assert (caught.value.is_outage, caught.value.status) == (False, 404)
    assert "ncclt profile import --group N" in caught.value.hint


def test_what_a_table_leaves_open_is_asked_for():
    with serving(reply(body="# c\n")) as server:
        fetch(server.url, format="nvidia-csv", channels=8)

    assert server.seen[0].path.endswith("model=bert&format=nvidia-csv&channels=8")


def test_an_unknown_format_is_refused_before_anything_is_sent(subtests):
    for options in [{"format": "yaml"}, {"shell": "zsh"}, {"shell": "ash"}, {"format": "json", "unset": True}]:
        with subtests.test(options=options):
            with serving(reply()) as server, pytest.raises(ClientError, match="unknown format"):
                fetch(server.url, **options)
            assert not server.seen


def test_the_client_is_a_folder_of_the_standard_library_in_the_syntax_of_python_3_8(tmp_path):
    copy = tmp_path / "client"
    copy.mkdir()
    for module in (ncclt.client, ncclt.client.fetch, ncclt.client.answer, ncclt.client.trust):
        source = Path(module.__file__).read_text()
        tree = ast.parse(source, feature_version=(3, 8))
        imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        imported |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level == 0}
        assert {name.partition(".")[0] for name in imported} <= sys.stdlib_module_names
        (copy / Path(module.__file__).name).write_text(source)

    asking = "from client import fetch; print(fetch.fetch_env.__module__)"
    script = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {asking}"
    alone = subprocess.run([sys.executable, "-I", "-S", "-c", script], capture_output=True, text=True, check=False)
    assert (alone.stdout, alone.stderr) == ("client.fetch\n", "")


def test_an_attestation_is_posted_with_the_key():
    attestation = {"schema": 1, "id": "a1", "effect": "partly"}
    with serving(reply(201, json.dumps(attestation), "application/json")) as server:
        post_attestation(server.url + "/tuner", attestation, api_key="k-1")
        post_attestation(server.url, attestation, ticket="t-1")
    sent, with_ticket = server.seen
    assert (sent.path, sent.body, sent.headers["Authorization"]) == (
        "/tuner/v1/attestations",
        attestation,
        "Bearer k-1",
    )
    assert sent.headers["Content-Type"] == "application/json"
    assert with_ticket.body == {**attestation, "ticket": "t-1"}


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (reply(200, '{"id": "other"}', "application/json"), "did not keep the attestation"),
        (reply(200, "<html>", "text/html"), "no usable answer"),
        (reply(404, json.dumps(PROBLEM), "application/problem+json"), "nothing fits"),
    ],
)
def test_an_attestation_that_was_not_kept_is_an_error(answer, message):
    with serving(answer) as server, pytest.raises(ClientError, match=message):
        post_attestation(server.url, {"id": "a1"})


def test_a_step_time_is_posted_and_what_all_show_comes_back():
    kept = {"rollout": "r1", "state": "running", "reason": "83 jobs\nso far", "job": "7"}
    with serving(reply(200, json.dumps(kept), "application/json")) as server:
        told = post_step_time(server.url, {"rollout": "r1", "job": "7"}, api_key="k-1", ticket="t-1")
        with pytest.raises(ClientError, match="did not keep the step time"):
            post_step_time(server.url, {"rollout": "r2", "job": "7"})
    assert told == {"rollout": "r1", "state": "running", "reason": "83 jobs so far"}
    assert (server.seen[0].path, server.seen[0].body["job"]) == ("/v1/step-times", "7")
    assert [seen.body.get("ticket") for seen in server.seen] == ["t-1", None]
    assert server.seen[0].headers["Authorization"] == "Bearer k-1"


def test_what_is_no_object_is_no_answer_to_any_question(subtests):
    for body in ["[]", "1", "{", ""]:
        with subtests.test(body=body):
            for ask in (lambda url: fetch_recommendation(url, "r-1"), lambda url: post_attestation(url, {"id": "a1"})):
                with serving(reply(200, body)) as server, pytest.raises(ClientError, match="no usable answer"):
                    ask(server.url)


@pytest.mark.parametrize(
    ("problem", "said"),
    [
        ({"title": "Not Found"}, "Not Found"),
        ({"title": "Not Found", "detail": "nothing fits"}, "nothing fits"),
        ({"status": 404}, "HOST answered 404"),
    ],
)
def test_a_problem_is_told_by_its_detail_its_title_or_its_status(problem, said):
    answer = reply(404, json.dumps({**problem, "hint": "run tune"}), "application/problem+json")
    with serving(answer) as server, pytest.raises(ClientError) as caught:
        fetch(server.url)
    assert caught.value.message == said.replace("HOST", server.url.removeprefix("http://"))
    assert (caught.value.hint, caught.value.status) == ("run tune", 404)


def test_a_recommendation_is_fetched_by_its_id():
    with serving(reply(200, '{"id": "r/1"}', "application/json")) as server:
        assert fetch_recommendation(server.url, "r/1") == {"id": "r/1"}
    assert server.seen[0].path == "/v1/recommendations/r%2F1"
