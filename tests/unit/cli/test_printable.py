"""Names of the store on a terminal: none moves the cursor, hides or reorders text, whichever command lists it."""

import json
import os
import pty
import subprocess
import sys

import pytest

from ncclt.cli.output import printable
from ncclt.store import open_store
from ncclt.testing.store_contract import sample_recommendation

CONTROLS = [chr(n) for n in (*range(9), *range(11, 32), *range(127, 160), 0x200E, 0x202E, 0x2066)]
NAME = "bert\x1b]0;owned\x07\x1b[2J\x1b[1A\x9b2K\u202e\rfine"


@pytest.mark.parametrize("colours", [False, True])
def test_every_control_character_is_spelled_out(colours):
    text = printable("a" + "".join(CONTROLS) + "b\x1b[2Jc", colours=colours)
    assert text.isprintable()
    assert printable("a\tb\nc é 漢", colours=colours) == "a\tb\nc é 漢"


def test_only_colours_and_bold_are_kept():
    ours = "\x1b[1mhead\x1b[0m \x1b[38;5;12mx\x1b[0m"
    assert printable(ours, colours=True) == ours
    assert "\x1b" not in printable("\x1b[8mhidden \x1b[2J\x1b[?25l", colours=True)
    assert "\x1b" not in printable(ours)


@pytest.mark.parametrize(
    "words",
    [
        ("studies", "list"), ("recommendations", "list"), ("recommendations", "show", "hostile"),
        ("recommendations", "history", "--cluster", "pair"), ("cluster", "list"), ("profile", "list"), ("jobs", "list"),
        ("env", "--cluster", "pair", "--model", NAME, "--nodes", "9", "--gpus-per-node", "4"),
        ("env", "--cluster", NAME, "--model", "x", "--nodes", "2", "--gpus-per-node", "4"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_hostile_names_reach_no_terminal(tmp_path, words):
    url = f"sqlite:///{tmp_path}/a.db"
    with open_store(url) as store:
        from dataclasses import replace

        store.publish(replace(sample_recommendation("hostile"), model=NAME))
    master, slave = pty.openpty()
    environ = {**os.environ, "NCCLT_STORAGE": url, "XDG_CONFIG_HOME": str(tmp_path), "TERM": "xterm"}
    process = subprocess.Popen(
        [sys.executable, "-m", "ncclt", *words], stdin=slave, stdout=slave, stderr=slave, env=environ, cwd=tmp_path
    )
    os.close(slave)
    shown = b""
    try:
        while piece := os.read(master, 65536):
            shown += piece
    except OSError:  # the other end is closed
        pass
    assert process.wait(60) is not None
    os.close(master)
    text = shown.decode().replace("\r\n", "\n")  # the terminal's own line ends
    assert text.strip()
    assert printable(text, colours=True) == text, json.dumps(text)
