"""The client against servers and caches gone bad: a job gets checked values or nothing, in time, and no other error."""

import contextlib
import json
import math
import os
import re
import subprocess
import threading
import time
from functools import partial
from types import SimpleNamespace

import hostile_server as fake
import pytest
from answering_server import reply, serving

from ncclt.cli import env
from ncclt.client.answer import FORMS, GROUP_FORMS, TABLES
from ncclt.client.fetch import ClientError, fetch_env, fetch_recommendation
from ncclt.client.report import post_attestation, post_step_time
from ncclt.core.trial import NOT_LAUNCHED

JOB = {"cluster": "leonardo", "model": "bert", "nodes": 2, "gpus_per_node": 4, "nccl_version": "2.28.9"}


def fetch(url, **options):
    return fetch_env(url, **{**JOB, "timeout_s": 5.0, **options})


def judged(text, form):
    """Fail unless a text for a job sets legal values and nothing else; return what it sets."""
    if form in TABLES:
        assert fake.is_table(text), text
        return dict(re.findall(r"(?m)^# needs (\S+)=(\S+) in the environment$", text))
    if form in fake.PAIR_FORMATS:
        pairs = fake.pairs_in(text, form)
        assert fake.all_legal(pairs), pairs
        return pairs
    if form in GROUP_FORMS:
        return fake.group_options_in(text)
    patterns = {
        "export fish": r"set -gx ([A-Z_0-9]+) '([\w:;,.-]*)';",
        "export csh": r"setenv ([A-Z_0-9]+) '([\w:;,.-]*)';",
        "export unset": r"unset ([A-Z_0-9]+)()",
        "export fish unset": r"set -q ([A-Z_0-9]+); and set -e \1;()",
        "export csh unset": r"unsetenv ([A-Z_0-9]+);()",
    }
    lines = [re.fullmatch(patterns[form], line) for line in text.splitlines() if not line.startswith("# ")]
    assert all(lines), text
    names = {line[1] for line in lines}
    assert names <= {*fake.HONEST, "NCCLT_RECOMMENDATION", "NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD"}
    return names


def options_of(form):
    format, *rest = form.split(" ")
    if form == "megatron-yaml":
        return {"format": form, "group": "tp"}
    return {
        "format": format,
        "unset": "unset" in rest,
        "shell": next((word for word in rest if word != "unset"), "bash"),
    }


def test_nothing_comes_of_an_answer_below_the_text_and_no_other_error(subtests):
    for attack in fake.OUTAGES:
        with subtests.test(attack=attack), fake.hostile(attack) as server:
            began = time.monotonic()
            for ask in (
                lambda: fetch(server.url, timeout_s=0.3),
                lambda: fetch_recommendation(server.url, "r1", timeout_s=0.3),
                lambda: post_attestation(server.url, {"id": "a1"}, timeout_s=0.3),
            ):
                with pytest.raises(ClientError) as caught:
                    ask()
                assert caught.value.message.isprintable()
                assert caught.value.hint or "detail" in attack or caught.value.status
                assert caught.value.is_outage or caught.value.status in (302, 304)
            assert time.monotonic() - began < 0.9 + 120, "the answers last 300 s"


@pytest.mark.parametrize("attack", fake.HARMLESS)
def test_garbage_around_an_honest_text_costs_nothing(attack, tmp_path):
    options = {"cache_dir": tmp_path / "cache", "fallback": "cached"}
    with fake.hostile(attack) as server:
        for form in (form for form in FORMS if form not in GROUP_FORMS):
            text = fetch(server.url, **options_of(form), **options).text
            assert set(fake.HONEST) - {"NCCL_MAX_CTAS"} <= {
                *judged(text, form),
                *(fake.HONEST if form in TABLES else ()),
            }
        again = fetch(server.url, **options)
    assert judged(again.text, "export").keys() == {*fake.HONEST, "NCCLT_RECOMMENDATION"}


def test_a_job_gets_legal_values_only_whatever_the_text_holds(capsys, subtests):
    """Through the client in every form, and through the command; pairs that can be in `json` are refused below."""
    for attack in [attack for attack in fake.TEXTS if not attack.startswith("pair NCCL_")]:
        with subtests.test(attack), fake.hostile(attack) as server:
            for form in FORMS:
                try:
                    text = fetch(server.url, **options_of(form)).text
                except ClientError:
                    continue
                judged(text, form)
            words = ["--cluster", "leonardo", "--model", "bert", "--nodes", "2", "--gpus-per-node", "4"]
            for format in ("export", "slurm-taskprolog", "json"):
                words += ["--nccl-version", "2.28.9", "--format", format, "--server", server.url]
                capsys.readouterr()
                code = env.main(words)
                out = capsys.readouterr().out
                assert (code == 0) == bool(out)
                if out:
                    judged(out, format)


def _without(document, *names):
    return {name: value for name, value in document.items() if name not in names}


def test_an_answer_that_hides_the_origin_of_its_times_is_refused(tmp_path):
    """Missing, falsified, of an older server, or against its own launcher: neither fetched nor taken from the cache."""
    honest = fake.document()
    cases = {
        "missing": _without(honest, "origin"),
        "older server": _without(honest, "origin") | {"simulated": False},
        "older server, simulated": _without(honest, "origin") | {"simulated": True},
        **{repr(word): fake.document(origin=word) for word in (None, True, "", "real", "Measured", ["measured"])},
        **{repr(word): fake.document(launcher=word) for word in NOT_LAUNCHED},
        **{f"{word} not allowed": fake.document(origin=word) for word in ("recorded", "simulated")},
    }
    sent = honest
    with serving(lambda handler: reply(body=json.dumps(sent))(handler)) as server:
        assert fetch(server.url).text, "the honest one passes"
        given = []
        for case, document in cases.items():
            sent = document
            for form in (form for form in FORMS if form not in TABLES):
                with contextlib.suppress(ClientError):
                    given.append((case, form, fetch(server.url, **options_of(form)).text))
            with contextlib.suppress(ClientError):
                given.append((case, "cache", fetch(server.url, cache_dir=tmp_path, fallback="cached").text))
        assert not given
    with pytest.raises(ClientError):  # nothing of them was cached
        fetch(server.url, cache_dir=tmp_path, fallback="cached", timeout_s=0.3)


def test_one_bad_pair_refuses_the_whole_answer(subtests):
    """Variables are all delivered or none; only the client sets `NCCLT_` names."""
    sent = {}
    with serving(lambda handler: reply(body=json.dumps(fake.document(variables=sent)))(handler)) as server:
        for name, value in fake.HOSTILE_PAIRS:
            if name.startswith("NCCLT_"):
                continue
            sent = {**fake.HONEST, name: value}
            for form in ("export", "json", "slurm-taskprolog"):
                with (
                    subtests.test(pair=(name, value), form=form),
                    pytest.raises(ClientError, match="is never set by ncclt"),
                ):
                    fetch(server.url, **options_of(form))


@pytest.mark.parametrize(
    "other",
    [{"cluster": "another"}, {"model": "another"}, {"nodes": 3}, {"gpus_per_node": 8}],
    ids=lambda o: next(iter(o)),
)
def test_an_answer_for_another_job_is_refused(other, tmp_path):
    """A proxy may mix up its answers, and a server its names."""
    named = f"it is for {next(iter(other))} "
    with serving(reply(body=json.dumps(fake.document(**other)))) as server, pytest.raises(ClientError, match=named):
        fetch(server.url, cache_dir=tmp_path, fallback="cached")
    assert list(tmp_path.iterdir()) == []


def test_a_real_shell_sets_the_checked_values_and_runs_nothing(tmp_path):
    """The names of model and cluster and the remarks are the server's; an interactive zsh would run a remark."""
    evil = f"a'; touch {tmp_path}/evil; $(touch {tmp_path}/evil) `touch {tmp_path}/evil` > {tmp_path}/evil\n"
    document = fake.document(
        model=evil, cluster=evil, lost=[evil], remarks=[evil, f"\nexport LD_PRELOAD={tmp_path}/evil.so\n"]
    )
    with serving(reply(body=json.dumps(document))) as server:
        text = fetch(server.url, cluster=evil, model=evil).text
    for script in ('eval "$1"; env', "eval $1; env", f"{text}env"):
        ran = subprocess.run(
            ["bash", "-c", script, "x", text], capture_output=True, text=True, env={"PATH": os.defpath}
        )
        assert f"NCCL_PROTO={fake.HONEST['NCCL_PROTO']}" in ran.stdout.splitlines()
        assert "LD_PRELOAD=" not in ran.stdout
        assert ran.stderr == ""
    assert list(tmp_path.iterdir()) == []


VALUES = [
    ("2.20.5", "tree", True),
    ("2.20.5", "ring", True),
    ("v2.23", "tree", True),
    ("22005", "tree", True),
    ("2.20.5", "allreduce:tree", False),
    ("2.20.5", "nvls", False),
    ("2.24.3", "tree", False),
    ("2.28.9", "Tree", False),
    (None, "tree", False),
    ("latest", "tree", False),
    ("2.28.9", "allreduce:tree", True),
    ("2.28.9", "allreduce:nvls,ring", True),
    (None, "allreduce:tree", True),
    ("2.31.0", "allreduce:tree", False),
    ("2.31.0", "ring,tree;allreduce:tree", True),
    ("23100", "ring", False),
    ("2.28.9", "ring,tree;allreduce:tree", True),
    ("2.28.9", "allreduce:tree;allreduce:ring", False),
]
"""(NCCL of the job, NCCL_ALGO, whether it passes)"""


def test_a_list_passes_in_the_language_of_the_jobs_nccl_alone(subtests):
    sent = ""
    with serving(
        lambda handler: reply(body=json.dumps(fake.document(variables={"NCCL_ALGO": sent})))(handler)
    ) as server:
        for version, value, good in VALUES:
            sent = value
            with subtests.test(version=version, value=value):
                if good:
                    assert value in fetch(server.url, nccl_version=version).text
                else:
                    with pytest.raises(ClientError, match="is never set by ncclt"):
                        fetch(server.url, nccl_version=version)


def test_an_address_of_no_host_is_no_other_error(subtests):
    for server in [
        "http://host..x:80",
        "http://" + "a" * 70 + ".example",
        "http://host:99999999",
        "http://%zz",
        None,
    ]:
        for ask in (fetch, partial(post_attestation, document={"id": "a1"}), partial(post_step_time, document={})):
            with subtests.test(server=server, ask=ask), pytest.raises(ClientError):
                ask(server, timeout_s=2.0)


@pytest.mark.parametrize(
    "options",
    [
        {"model": "\udce9"},
        {"timeout_s": math.inf},
        {"timeout_s": math.nan},
        {"cache_dir": "/tmp/\0"},
        {"api_key": "\u2603"},
        {"model": 7},
    ],
)
def test_arguments_that_no_server_can_be_asked_with_are_no_other_error(options):
    with serving(reply()) as server:
        try:
            text = fetch(server.url, **options).text
        except ClientError:
            return
    judged(text, "export")


def test_a_server_without_end_leaves_no_thread_behind():
    """Its thread would go on beside the training that asked."""
    for attack in ("continue without end", "trailers without end", "headers that drip", "a body that drips"):
        before = set(threading.enumerate())
        with fake.hostile(attack) as server:
            with pytest.raises(ClientError, match=r"did not answer within 0\.3 s"):
                fetch(server.url, timeout_s=0.3)
            # Those of the server end with it.
            asking = [one for one in set(threading.enumerate()) - before if "ask" in one.name]
            for one in asking:
                one.join(120)
                assert not one.is_alive()


@pytest.fixture
def cached(tmp_path):
    """Return the address of a server that is gone, the options to ask it with, and the file that it left behind."""
    options = {"cache_dir": tmp_path / "cache", "fallback": "cached"}
    with serving(reply(ETag='"v1"')) as server:
        fetch(server.url, **options)
    (path,) = (tmp_path / "cache").iterdir()
    return SimpleNamespace(url=server.url, options=options, path=path)


@pytest.mark.parametrize(
    "change",
    [
        {"saved": math.nan},
        {"saved": -1},
        {"saved": "1"},
        {"saved": 4e9},
        {"saved": 0},
        {"text": 7},
        {"text": "[" * 100_000},
        {"text": json.dumps(fake.document(variables={"NCCL_PROTO": "LL128"}))},
        {"text": json.dumps(fake.document(variables={"NCCL_TUNER_PLUGIN": "/srv/evil.so"}))},
        {"url": "http://other"},
        {"schema": 1},
        {"saved": [], "etag": []},
    ],
    ids=lambda change: str(change)[:40],
)
def test_a_cache_entry_that_this_client_would_not_write_is_not_used(cached, change):
    kept = json.loads(cached.path.read_text())
    cached.path.write_text(json.dumps({**kept, **change}))

    with pytest.raises(ClientError, match=r"nothing listens|bad answer|not with an environment"):
        fetch(cached.url, **cached.options)


@pytest.mark.parametrize("etag", ["\u2603", "a\r\nX: y", "x" * 100_000, 7, [], None])
def test_an_etag_that_cannot_be_sent_is_left_out(tmp_path, etag):
    with serving(reply(ETag='"v1"')) as server:
        fetch(server.url, cache_dir=tmp_path)
        (path,) = tmp_path.iterdir()
        path.write_text(json.dumps({**json.loads(path.read_text()), "etag": etag}))
        assert fetch(server.url, cache_dir=tmp_path).source == "server"
    assert "If-None-Match" not in server.seen[1].headers


def _link(path):
    other = path.with_suffix(".other")
    path.rename(other)
    path.symlink_to(other)


def _huge(path):
    with path.open("a") as file:
        file.truncate(2**33)


FILES = {
    "FIFO": lambda path: (path.unlink(), os.mkfifo(path)),
    "link": _link,
    "link to a device": lambda path: (path.unlink(), path.symlink_to("/dev/zero")),
    "others can write it": lambda path: path.chmod(0o666),
    "8 GiB": _huge,
    "unreadable bytes": lambda path: path.write_bytes(b"\xff" * 100),
}
"""The rest is held by test_trust.py: the cache is read by the same function."""


@pytest.mark.parametrize("kind", FILES)
def test_a_cache_that_others_could_have_written_is_not_read_and_never_waited_for(cached, kind):
    FILES[kind](cached.path)

    began = time.monotonic()
    with pytest.raises(ClientError, match="nothing listens") as caught:
        fetch(cached.url, **cached.options)
    assert "nothing is cached" in caught.value.hint
    assert time.monotonic() - began < 10


def test_an_answer_is_not_kept_where_others_can_write(tmp_path):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    with serving(reply()) as server:
        fetched = fetch(server.url, cache_dir=tmp_path / "cache")

    assert "not cached" in fetched.warning
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.parametrize(
    ("age_days", "max_age_days", "used"), [(29, None, True), (31, None, False), (31, 40, True), (2, 1, False)]
)
def test_a_cached_answer_has_a_greatest_age(cached, age_days, max_age_days, used):
    kept = json.loads(cached.path.read_text())
    cached.path.write_text(json.dumps({**kept, "saved": time.time() - age_days * 86400 - 1}))
    more = {} if max_age_days is None else {"max_age_s": max_age_days * 86400.0}
    if used:
        assert f"{age_days} days old" in fetch(cached.url, **cached.options, **more).warning
        return
    with pytest.raises(ClientError) as caught:
        fetch(cached.url, **cached.options, **more)
    assert f"the cached answer is {age_days} days old" in caught.value.hint


def test_an_answer_that_still_holds_is_young_again(tmp_path):
    """Else a recommendation that never changes would be too old for its first outage."""

    def answer(handler):
        reply(304, "")(handler) if handler.headers.get("If-None-Match") else reply(ETag='"v1"')(handler)

    options = {"cache_dir": tmp_path, "fallback": "cached"}
    with serving(answer) as server:
        fetch(server.url, **options)
        (path,) = tmp_path.iterdir()
        path.write_text(json.dumps({**json.loads(path.read_text()), "saved": time.time() - 40 * 86400}))
        fetch(server.url, **options)
    assert "seconds old" in fetch(server.url, **options).warning


def test_the_command_keeps_answers_and_bridges_an_outage(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    words = ["--cluster", "leonardo", "--model", "bert", "--nodes", "2", "--gpus-per-node", "4"]
    words += ["--nccl-version", "2.28.9"]
    with fake.hostile("none") as server:
        words += ["--server", server.url]
        assert env.main(words) == 0
        assert not (tmp_path / "ncclt").exists()
        assert env.main([*words, "--fallback", "cached"]) == 0
    first = capsys.readouterr().out
    assert env.main([*words, "--fallback", "cached"]) == 0
    printed = capsys.readouterr()
    assert printed.out * 2 == first
    assert re.search(r"using the answer of 20.* from the cache, \d+ seconds old", printed.err)
    assert env.main(words) == 69

    monkeypatch.setenv("NCCLT_CACHE_DAYS", "0")
    assert env.main([*words, "--fallback", "cached"]) == 69
    assert "the cached answer is" in capsys.readouterr().err
    monkeypatch.setenv("NCCLT_CACHE_DAYS", "soon")
    assert env.main([*words, "--fallback", "cached"]) == 2
