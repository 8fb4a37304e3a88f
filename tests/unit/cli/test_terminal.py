"""On a terminal lines are folded at its width, and nothing that is stored reaches it as a control character."""

import fcntl
import json
import os
import pty
import re
import sqlite3
import struct
import subprocess
import sys
import termios
import threading

import pytest
from full_records import fill_record

from ncclt.core.preflight import Preflight, State
from ncclt.store import open_store

STYLE = re.compile(r"\x1b\[[0-9;]*m")
NAMES = ("zwork", "zclus", "znote", "zstud")
HOSTILE = "\x1b[31m\x9b7m\x1b]0;owned\x07\r\u202e"
SHOWN = r"\u001b[31m\u009b7m\u001b]0;owned\u0007"


@pytest.fixture
def environ(tmp_path):
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("NCCLT_", "XDG_", "PYTHON", "COLUMNS"))}
    return {**kept, "HOME": str(tmp_path), "TERM": "xterm"}


def on_terminal(words, environ, columns):
    """Return what a terminal of some columns is sent."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    sent = []

    def read():
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # the other end is closed
                return
            sent.append(piece)

    reader = threading.Thread(target=read)
    reader.start()
    argv = [sys.executable, "-m", "ncclt", *words]
    subprocess.run(argv, env=environ, stdin=its, stdout=its, stderr=its, timeout=120, check=False)
    os.close(its)
    reader.join()
    os.close(ours)
    return b"".join(sent).decode().replace("\r\n", "\n")


@pytest.fixture
def piped(environ, nursery, tmp_path):
    """Return the output of a command started without a terminal."""

    def call(words):
        _code, out, err = nursery(words, environ, tmp_path)
        return out + err

    return call


TUNE = ("tune", "--model", "bert", "--nodes", "2", "--launcher", "simulate", "--trials", "3", "--blocks", "3")


@pytest.fixture
def hostile(environ, piped, tmp_path):
    """A store whose names and notes were written by another program."""
    (tmp_path / "work.csv").write_text("collective,size_bytes,calls\nall_reduce,4194304,2\n")
    (tmp_path / "clus.toml").write_text(
        piped(("cluster", "show", "dgx-h100", "--toml")).replace('"dgx-h100"', '"zclus"')
    )
    for words in (
        ("profile", "import", str(tmp_path / "work.csv"), "--name", "zwork"),
        ("cluster", "add", str(tmp_path / "clus.toml")),
        ("admin", "keys", "create", "--role", "read", "--note", "znote"),
        (*TUNE[:1], "--model", "zwork", "--cluster", "zclus", *TUNE[3:], "--study", "zstud"),
    ):
        piped(words)
    with open_store(f"sqlite:///{tmp_path}/.local/share/ncclt/ncclt.db") as store:
        store.records.add_preflight(fill_record(Preflight, cluster="zclus", state=State.UNMEASURED, readings=()))
    with sqlite3.connect(tmp_path / ".local/share/ncclt/ncclt.db") as database:
        of = dict(
            database.execute("select name, type from sqlite_master where type in ('table', 'trigger')").fetchall()
        )
        for name in [name for name, kind in of.items() if kind == "trigger"]:
            database.execute(f'drop trigger "{name}"')
        for table in [name for name, kind in of.items() if kind == "table"]:
            for column in [row[1] for row in database.execute(f'pragma table_info("{table}")').fetchall()]:
                for name in NAMES:
                    new = f"{name}{HOSTILE}"
                    database.execute(
                        f"""update "{table}" set "{column}" = replace("{column}", ?,
                        case when substr("{column}", 1, 1) in ('{{', '[') then ? else ? end)
                        where typeof("{column}") = 'text'""",
                        (name, json.dumps(new)[1:-1], new),
                    )
    database.close()
    return environ


LISTS = {
    ("studies", "list"): "zwork",
    ("studies", "show", f"zstud{HOSTILE}"): "zstud",
    ("profile", "list"): "zwork",
    ("profile", "show", f"zwork{HOSTILE}"): "zwork",
    ("cluster", "list"): "zclus",
    ("cluster", "show", f"zclus{HOSTILE}"): "zclus",
    ("admin", "recommendations", "list"): "zwork",
    ("admin", "keys", "list"): "znote",
    ("preflight", "--history"): "zclus",
    ("studies", "list", "--json"): "zwork",
    ("cluster", "list", "--json"): "zclus",
    ("env", "--model", f"zwork{HOSTILE}", "--cluster", "zclus"): "zwork",
    ("studies", "show", f"zstud{HOSTILE}", "--plot"): "zwork",
}


def test_control_characters_of_stored_names_reach_no_terminal(hostile, piped):
    """The styles are those of ncclt alone."""
    for words, name in LISTS.items():
        sent = on_terminal(words, hostile, 300)
        assert "\x1b[31m" not in sent, words
        assert "\x1b[1m" in sent or words != ("studies", "list")
        for text in (STYLE.sub("", sent), piped(words)):
            assert re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", text) is None, (words, text)
            assert f"{name}{SHOWN}" in text, (words, text)
