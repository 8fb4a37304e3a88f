"""Thousands of hostile answers through every door: a job gets nothing, or legal pairs and nothing else.

What is legal is said by tests/fakes/hostile_answers.py, by hand and without a line of ncclt.
"""

import json
import os
import random
import re
import shlex
import subprocess
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import hostile_server as fake
import pytest

import ncclt.client.fetch
from ncclt.client.answer import GROUP_FORMS, TABLES, AnswerError, comment_lines, one_line, written
from ncclt.client.fetch import ClientError, fetch_env
from ncclt.core.attestation import Form
from ncclt.deliver.answer import answer_from_json, answer_from_table
from ncclt.deliver.job_info import JobInfo
from ncclt.deliver.job_plan import Means, plan_job
from ncclt.errors import NccltError
from ncclt.nccl.parameters import CATALOGUE, SET_BY_RULES
from ncclt.nccl.tuner_plugin.compact_table import table_environment

ANSWERS = 5_000
VERSIONS = ("2.28.9", "2.20.5", "2.31.0", None)
LEGAL_PAIRS = [
    ("NCCL_ALGO", "allreduce:tree"),
    ("NCCL_ALGO", "allreduce:nvls,ring"),
    ("NCCL_ALGO", "ring"),
    ("NCCL_ALGO", "ring,tree;allgather:ring"),
    ("NCCL_PROTO", "allreduce:LL;reduce:Simple"),
    ("NCCL_PROTO", "Simple"),
    ("NCCL_BUFFSIZE", "1048576"),
    ("NCCL_NTHREADS", "256"),
    ("NCCL_MIN_CTAS", "4"),
    ("NCCL_MAX_CTAS", "64"),
    ("NCCL_SOCKET_NTHREADS", "4"),
    ("NCCL_NSOCKS_PERTHREAD", "8"),
    ("NCCL_IB_QPS_PER_CONNECTION", "128"),
    ("NCCL_NCHANNELS_PER_NET_PEER", "4"),
    ("NCCL_MIN_P2P_NCHANNELS", "16"),
    ("NCCL_P2P_NET_CHUNKSIZE", "262144"),
    ("NCCL_P2P_NET_CHUNKSIZE", "1048576"),
    ("NCCL_MAX_NCHANNELS", "32"),
    ("NCCL_IB_SPLIT_DATA_ON_QPS", "1"),
]
MARKS = "^LlL128SsimpleTtreeRringnvlsall:;,.-+_0123456789 \t\r\n\0'\"`$(){}[]<>|&!*?~#=%\\/\u2028\u0661é"
JUNK = (None, True, 0, -1, 8, 65, 1.5, float("inf"), float("nan"), 10**30, "", "ring", "LL128", "8388608", [], {}, [[]])


def _word(chance):
    return "".join(chance.choice(MARKS) for _ in range(chance.randrange(12)))


def _mutated(chance, text):
    """Return a text with one to three characters put in, taken out or changed."""
    for _ in range(chance.randint(1, 3)):
        place = chance.randrange(len(text) + 1)
        text = text[:place] + chance.choice(["", chance.choice(MARKS)]) + text[place + chance.randint(0, 1) :]
    return text


def _pair(chance):
    """Return a pair that is legal, hostile, or one of both with something changed."""
    name, value = chance.choice(chance.choice((LEGAL_PAIRS, LEGAL_PAIRS, fake.HOSTILE_PAIRS)))
    match chance.randrange(8):
        case 0:
            value = _mutated(chance, value)
        case 1:
            name = _mutated(chance, name)
        case 2:
            value = str(chance.choice((1, -1)) * chance.randrange(10 ** chance.randint(1, 20)))
        case 3:
            value = _word(chance)
        case 4:
            name = chance.choice(CATALOGUE).variable
    return name, value


def hostile_document(chance):
    """Return the text of a `json` answer, most of it good."""
    document = fake.document(variables=dict(_pair(chance) for _ in range(chance.randint(1, 3))))
    match chance.randrange(10):
        case 0:
            document[chance.choice(list(document))] = chance.choice((*JUNK, _word(chance)))
        case 1:
            document["table_parameters"] = {_pair(chance)[0][5:]: chance.choice((*JUNK, 8388608, 64, 16))}
        case 2:
            rule = document["table"][0]
            rule[chance.choice(list(rule))] = chance.choice((*JUNK, _word(chance)))
        case 3:
            document[chance.choice(("model", "cluster", "launcher", "decision"))] = _word(chance) * 9
            document["lost"] = document["remarks"] = [_word(chance) * 20]
        case 4:
            threads, each = chance.randrange(17), chance.randrange(65)
            document["variables"] = {"NCCL_SOCKET_NTHREADS": str(threads), "NCCL_NSOCKS_PERTHREAD": str(each)}
        case 5:
            document |= {"decision": chance.choice(("tuned", "undecided", "keep-default")), "origin": "simulated"}
    text = json.dumps(document)
    return _mutated(chance, text) if chance.randrange(10) == 0 else text


def hostile_table(chance, form):
    text = fake.written(form, dict(_pair(chance) for _ in range(chance.randint(0, 2))))
    return _mutated(chance, text) if chance.randrange(2) else text


@dataclass
class Sent:
    """What the server of a test answers next."""

    text: str = ""


@pytest.fixture
def sent(monkeypatch):
    """Answers without a network, at the one place where client.py reads them from it."""
    answer = Sent()
    monkeypatch.setattr(ncclt.client.fetch, "get", lambda *_, **__: ncclt.client.fetch.Answered(answer.text, "", 1.0))
    return answer


def test_whatever_a_server_answers_a_job_gets_legal_pairs_or_nothing(sent, tmp_path):
    chance = random.Random(0)
    given = dict.fromkeys((*fake.PAIR_FORMATS, *TABLES, "run", "run with a table", "run --policy"), 0)
    for number in range(ANSWERS):
        version = chance.choice(VERSIONS)
        form = (*fake.PAIR_FORMATS, *TABLES)[number % (len(fake.PAIR_FORMATS) + len(TABLES))]
        sent.text = hostile_table(chance, form) if form in TABLES else hostile_document(chance)
        try:
            text = fetch_env("http://s", cluster="leonardo", model="bert", nccl_version=version, format=form).text
        except ClientError:
            text = ""
        if text and form in TABLES:
            given[form] += 1
            assert fake.is_table(text, version or "2.28.9"), sent.text
        elif text:
            given[form] += 1
            assert fake.all_legal(fake.pairs_in(text, form), version or "2.28.9"), sent.text
        if form not in TABLES:
            _run(sent.text, given)
        elif form == "tuner-csv" and number % 2:  # prime to the number of formats
            _run_policy(sent.text, tmp_path / "table.csv", given)
    assert all(count > 10 for count in given.values()), given


def test_whatever_a_server_answers_a_process_group_gets_legal_channels_or_nothing(sent):
    chance = random.Random(1)
    given = dict.fromkeys(GROUP_FORMS, 0)
    for number in range(ANSWERS // 4):
        form = GROUP_FORMS[number % 2]
        document = fake.document(variables={chance.choice(("NCCL_MAX_CTAS", "NCCL_MIN_CTAS")): _pair(chance)[1]})
        if chance.randrange(4) == 0:
            document["groups"] = chance.choice(
                (*JUNK, [[8, True], [4, False]], [[8, "1"]], [["8\n", True]], _word(chance))
            )
        sent.text = json.dumps(document)
        group = "tp" if form == "megatron-yaml" else ""
        try:
            text = fetch_env("http://s", cluster="leonardo", model="bert", format=form, group=group).text
        except ClientError:
            continue
        given[form] += 1
        assert fake.group_options_in(text), sent.text
        assert document["groups"] == [[8, True]]
    assert all(count > 10 for count in given.values()), given


def _run(text, given):
    """Judge what `ncclt run` sets: whatever the document says of itself decides which NCCL it is for."""
    try:
        answer = answer_from_json(text)
    except NccltError:
        return
    version = json.loads(text)["nccl_version"]
    given["run"] += 1
    table = table_environment(answer.table, Path("/here/table.csv"))
    for plugin in (None, Path("/here/plugin.so")):
        plan = plan_job(answer, JobInfo(argv=("torchrun",)), Means(plugin=plugin, table=table, hook=None, shared=True))
        pairs = dict(plan.set_env)
        ours = {name: pairs.pop(name) for name in ("NCCL_TUNER_PLUGIN", *table) if name in pairs}
        given["run with a table"] += plan.form is Form.TABLE
        assert ours == ({"NCCL_TUNER_PLUGIN": "/here/plugin.so", **table} if plan.form is Form.TABLE else {})
        assert fake.all_legal(pairs, version), text
        assert all(note.isprintable() for note in plan.notes)


def _run_policy(text, path, given):
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        answer = answer_from_table(path)
    except NccltError:
        return
    given["run --policy"] += 1
    assert fake.all_legal(dict(answer.table_variables), answer.nccl_version), text


def test_a_real_shell_reads_the_same_pairs(sent):
    """The oracle above reads texts in Python; bash must see nothing else in them."""
    chance = random.Random(99)
    script, wanted = [], []
    while len(wanted) < 200:
        sent.text = hostile_document(chance)
        try:
            text = fetch_env("http://s", cluster="leonardo", model="bert", nccl_version="2.28.9").text
        except ClientError:
            continue
        wanted.append(fake.pairs_in(text, "export"))
        script.append(f"(eval {shlex.quote(text)}; env; echo ---)")
    ran = subprocess.run(
        ["bash", "-c", "\n".join(script)], capture_output=True, text=True, env={"PATH": os.defpath}, check=True
    )
    assert ran.stderr == ""
    for pairs, block in zip(wanted, ran.stdout.split("---\n"), strict=False):
        seen = dict(line.split("=", 1) for line in block.splitlines() if line.startswith("NCCL"))
        assert seen == pairs
        assert "LD_PRELOAD" not in block


def test_channels_per_peer_that_do_not_reach_all_ranks_are_never_set(sent):
    """They hang send_recv: the published hangs are of 4 per peer with 64 ranks (NVIDIA/nccl#1835)."""
    channels = {"NCHANNELS_PER_NET_PEER": 4, "MIN_P2P_NCHANNELS": 16}
    variables = {f"NCCL_{name}": str(value) for name, value in channels.items()}
    for nodes, passes in ((8, True), (9, False), (16, False)):
        for changed in ({"variables": variables}, {"table_parameters": channels}):
            sent.text = json.dumps(fake.document(nodes=nodes, gpus_per_node=4, **changed))
            answer = partial(fetch_env, "http://s", cluster="leonardo", model="bert", format="json")
            with nullcontext() if passes else pytest.raises(ClientError, match="may hang"):
                answer()


def test_every_safe_value_of_the_catalogue_passes(sent):
    for row in CATALOGUE:
        if row.values is None or not (row.safe or row.name in SET_BY_RULES):
            continue
        for value in row.values:
            # Channels per peer never come alone.
            peer = {"NCCL_MIN_P2P_NCHANNELS": "16"} if row.name == "NCHANNELS_PER_NET_PEER" else {}
            sent.text = json.dumps(fake.document(variables={row.variable: str(value)} | peer))
            assert (
                f"{row.variable}={value}\n"
                in fetch_env("http://s", cluster="leonardo", model="bert", format="dotenv").text
            )


LONG = "x" * 300


def test_an_error_holds_60_characters_of_what_a_server_sent(subtests):
    for form, text, shown in [
        ("env", json.dumps(fake.document(variables={LONG: LONG})), 2),
        ("env", json.dumps(fake.document() | {"decision": LONG}), 1),
        ("env", json.dumps(fake.document() | {"model": LONG}), 1),
        ("tuner-csv", f"{LONG}\n", 1),
    ]:
        with subtests.test(form=form, text=text, shown=shown):
            with pytest.raises(AnswerError) as raised:
                written(text, form, {"cluster": "leonardo", "model": "bert"})
            assert [len(run) for run in re.findall("x{9,}", str(raised.value))] == [60] * shown


def test_what_a_terminal_shows_is_printable_and_short():
    assert one_line("a\x1b[2J\r\n\tb") == "a [2J b"
    assert one_line("x" * 1001) == "x" * 1000


def test_a_comparison_in_a_comment_keeps_its_meaning_without_a_character_of_the_shell():
    assert comment_lines(["gain 0.1 % < 2 % threshold"]) == ["# gain 0.1 % below 2 % threshold"]
