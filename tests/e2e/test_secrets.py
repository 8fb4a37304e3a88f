"""Passwords and keys stay where they are: not on a terminal, not in a store, not in a script of Slurm."""

import json

PASSWORD = "hunt@r2/x"
URL = f"postgresql://ncclt:{PASSWORD}@127.0.0.1:9/ncclt"
QUERY = "postgresql://ncclt@127.0.0.1:9/ncclt?connect_timeout=2&password=hunt@r2/x"


COMMANDS = (
    ("config", "show"),
    ("config", "show", "--json"),
    ("tune", "--model", "bert", "--nodes", "2", "--trials", "3", "--json"),
    ("env", "--model", "bert", "--cluster", "leonardo"),
    ("run", "--model", "bert", "--cluster", "leonardo", "--", "true"),
    ("serve", "--port", "0"),
    ("preflight", "--cluster", "leonardo", "--launcher", "ssh", "--dry-run"),
)


def test_the_password_of_the_store_is_never_shown(ncclt, subtests):
    """All commands with one URL; with the other one, one that shows it and one that cannot connect."""
    for url, commands in ((URL, COMMANDS), (QUERY, COMMANDS[1:3])):
        ncclt.variables["NCCLT_STORAGE"] = url
        for words in commands:
            with subtests.test(" ".join(words), url=url):
                done = ncclt(*words, rc=None)
                said = done.stdout + done.stderr
                assert said or words[0] == "run"
                assert "hunt" not in said
                assert "Traceback" not in said
                if words[0] == "config":
                    assert "ncclt:***@127.0.0.1" in said or "password=***" in said


def test_a_url_that_cannot_be_read_is_shown_without_its_password(ncclt):
    for url in (f"mysql://u:{PASSWORD}@db/x", f"postgresql://u:{PASSWORD}@db:port/x", f"sqlite://u:{PASSWORD}@x"):
        assert "hunt" not in ncclt("studies", "list", "--storage", url, rc=None).stderr


def test_a_file_of_the_user_is_shown_without_its_passwords(ncclt):
    (ncclt.folder / "ncclt.toml").write_text(f"storage = '{URL}'\nserver = 'https://me:{PASSWORD}@ncclt.example'\n")

    values = json.loads(ncclt("config", "show", "--json").stdout)["values"]

    assert values["storage"]["value"] == "postgresql://ncclt:***@127.0.0.1:9/ncclt"
    assert values["server"]["value"] == "https://me:***@ncclt.example"


PEM = "-----BEGIN PRIVATE KEY-----\nMIIEvSbody1\nQbody2\n-----END PRIVATE KEY-----"
PRINTED = f"""
Traceback (most recent call last):
OSError: wandb: 401 with key 0123456789abcdef0123456789abcdef01234567 at node17:/opt/train.py
aws_secret_access_key wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY
Cookie: session=verysecret; id=verysecret
+ curl -u ci:verysecret https://artifacts.example/x
ncclt-exporter --api-key verysecret --nodes 2
{PEM}
https://hooks.slack.com/services/T0000/B0000/verysecret
value of ours: quitePlainWord
"""


def test_output_of_a_failed_trial_is_kept_without_its_secrets(ncclt, local):
    """Whatever it printed: neither the terminal nor the file of the store has them."""
    (ncclt.folder / "printed").write_text(PRINTED)
    for program in list((ncclt.folder / "nccl-tests").glob("*_perf")):
        real = program.rename(program.with_suffix(".real"))
        program.write_text(f'#!/bin/sh\ncat {ncclt.folder}/printed >&2\nexec {real} "$@"\n')
        program.chmod(0o755)
    ncclt.variables |= {"STAND_IN": "partial", "MY_SERVICE_TOKEN": "quitePlainWord"}

    done = ncclt(*local, "--trials", "3", "--storage", "sqlite:///ncclt.db", rc=1)

    assert "node17:/opt/train.py" in done.stderr, "what people need stays"
    kept = b"".join(path.read_bytes() for path in ncclt.folder.glob("ncclt*.db*"))
    assert b"node17:/opt/train.py" in kept
    hidden = ("verysecret", "wJalrXUtnFEMI", "0123456789abcdef0123456789", "MIIEvSbody1", "Qbody2", "quitePlainWord")
    for secret in hidden:
        assert secret not in done.stdout + done.stderr
        assert secret.encode() not in kept
