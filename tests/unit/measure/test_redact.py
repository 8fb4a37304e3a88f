"""Secrets do not leave the machine with the last lines of a failed trial."""

import os
import random
import string
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclt.measure.redact import (
    MOST_CHARACTERS,
    REMOVED,
    variables_without_secrets,
    without_secrets,
    words_without_secrets,
)

HIDDEN = "s3cr3t-Val"


def test_what_looks_like_a_secret_is_removed(subtests):
    """By its name, by its place or by its form; what stands around it stays."""
    cases = [
        f"HF_TOKEN={HIDDEN}",
        f"WANDB_API_KEY: {HIDDEN}",
        f"AWS_SECRET_ACCESS_KEY={HIDDEN} NCCL_ALGO=Ring",
        f'{{"password": "{HIDDEN}", "x": 1}}',
        f"db_passwd='{HIDDEN}'",
        f"--password {HIDDEN}",
        f"--auth-token={HIDDEN}",
        f"postgresql://ncclt:{HIDDEN}@db.example/ncclt",
        f"NCCLT_API_KEY={HIDDEN}",
        f"GITHUB_PAT={HIDDEN}",
        f"MY_SECRET='{HIDDEN} with blanks'",
        f"os.environ['HF_TOKEN'] = '{HIDDEN}'",
        f"PASSWORD=a@b,c;{HIDDEN}",
        rf'"password": "a \" {HIDDEN}"',
        f"token={HIDDEN}@x",
        f"--api-key {HIDDEN}",
        f"--hf-token {HIDDEN}",
        f"client_secret {HIDDEN}",
        f"aws_secret_access_key {HIDDEN}",
        f"machine api.wandb.ai login user password {HIDDEN}",
        f"curl -u alice:{HIDDEN} https://x",
        f"curl -sSL --user alice:{HIDDEN} https://x",
        f"docker login -u alice:{HIDDEN}",
        f"sshpass -p {HIDDEN} ssh x",
        f"postgresql://u:p@ss@{HIDDEN}@host/db",
        f"postgresql://u:p/{HIDDEN}@host/db",
        f"https://{HIDDEN}@github.com/a/b",
        "pull failed for hf_s3cr3tVal",
        "token ghp_0123456789abcdefABCDEF",
        "AKIA0123456789ABCDEF",
        f"https://prod-1.westus.logic.azure.com/workflows/abc?sig={HIDDEN}",
        f"https://discord.com/api/webhooks/123456/{HIDDEN}",
        f"https://hooks.slack.com/services/T00/B00/{HIDDEN}",
        f"https://acme.webhook.office.com/webhookb2/1@5/{HIDDEN}",
        f"https://open.feishu.cn/open-apis/bot/v2/hook/{HIDDEN}",
        f"https://example/x?access_token={HIDDEN}",
    ]
    for text in cases:
        with subtests.test(text=text):
            shown = without_secrets(f"before {text} after")
            assert HIDDEN not in shown
            assert not {"s3cr3tVal", "0123456789abcdefABCDEF", "AKIA0123456789ABCDEF"} & set(
                shown.replace("_", " ").split()
            )
            assert "[removed]" in shown
            assert shown.startswith("before ")
            assert shown.endswith(" after")


def test_headers_are_removed_to_the_end_of_the_line(subtests):
    cases = [
        f"Cookie: session=abc; id={HIDDEN}",
        f"Set-Cookie: a=b; Path=/; c={HIDDEN}",
        f"Authorization: Bearer {HIDDEN}",
        f"Proxy-Authorization: Digest username='a', response='{HIDDEN}'",
        f"X-Api-Key: {HIDDEN}",
    ]
    for line in cases:
        with subtests.test(line=line):
            shown = without_secrets(f"before {line}\nafter")
            assert HIDDEN not in shown
            assert (shown.startswith("before "), shown.endswith(f"{REMOVED}\nafter")) == (True, True)


def test_bare_keys_are_known_by_their_form(subtests):
    """Of those that detect-secrets knows (the last three), and of those that it does not."""
    cases = [
        "aB3dE5fG7hI9jK1lM3nO5pQ7rS9tU1vW3xY5zA7b",
        "sk-proj-abcDEF0123456789abcDEF0123456789",
        "AIzaSyA-1234567890abcdefghijklmnopqrstuv",
        "ya29.a0AfH6SMBx-_abcdef0123",
        "pypi-AgEIcHlwaS5vcmcCJDk4",
        "glpat-abcdefghij0123456789",
        "nvapi-abcdefghijklmnop0123",
        "xoxb-1234567890-abcdefghij",
        "123456789:ABCdefGhIJKlmNoPQRsTUVwxyZ012345678",
        "SKabcdefabcdefabcdefabcdefabcdef01",
        "AccountKey=" + "aB3d" * 21 + "aB==",
    ]
    for key in cases:
        with subtests.test(key=key):
            for around in ("before {} after", "Error: ({}) is not valid", "'{}'"):
                assert key.removeprefix("AccountKey=") not in without_secrets(around.format(key)), around


@pytest.mark.parametrize("line", ["wandb: logging in with key {}", "api_key: {}", "Invalid API key provided: {}"])
def test_a_key_of_one_case_is_known_by_what_stands_before_it(line):
    key = "0123456789abcdef0123456789abcdef01234567"
    assert key not in without_secrets(line.format(key))
    assert without_secrets(f"commit {key}") == f"commit {key}"


@pytest.mark.parametrize("prefix", ["", "0: ", "[1,0]<stderr>:"])
@pytest.mark.parametrize("begun", [True, False])
def test_keys_in_pem_are_removed_whole(prefix, begun):
    """Also where the beginning was cut off, and with the rank before every line."""
    body = ["aB3d" * 16, "xY5z" * 16, "q1W2e3=="]
    begin = ["-----BEGIN OPENSSH PRIVATE KEY-----"] if begun else []
    lines = ["before", *(prefix + line for line in (*begin, *body, "-----END OPENSSH PRIVATE KEY-----")), "after"]
    shown = without_secrets("\n".join(lines))
    assert not any(line in shown for line in body)
    assert (shown.startswith("before\n"), shown.endswith("\nafter")) == (True, True)


def test_values_of_own_variables_are_removed_wherever_they_stand():
    environ = {
        "SERVICE_TOKEN": "quite plain words",
        "DB": "postgresql://u:p@ss@host/x",
        "SSH_KEY_PASSPHRASE": "12345",
        "TOKENIZERS_PARALLELISM": "parallel",
        "AWS_SHARED_CREDENTIALS_FILE": "/root/.aws/credentials",
        "NCCL_ALGO_PAT": "allgather",
        "USE_TOKEN": "true",
        "SOME_SECRET": "12345678",
    }
    shown = without_secrets("it said: quite plain words, parallel allgather true 12345678", environ=environ)
    assert shown == f"it said: {REMOVED}, parallel allgather true 12345678"


def test_words_of_a_command_line_stay_words():
    words = ("python", "train.py", "--api-key", HIDDEN, "--lr", "1e-4", "-H", f"Authorization: Bearer {HIDDEN}", "a\nb")
    shown = words_without_secrets(words)
    assert shown == (*words[:3], REMOVED, *words[4:7], f"Authorization: {REMOVED}", "a b")


def test_ordinary_lines_stay_as_they_are(subtests):
    """They are what people need."""
    cases = [
        "host:12:34 [0] NCCL WARN [Rem Allocator] Allocation failed",
        "        1024           256     float     sum      -1    20.11    0.05    0.08       0",
        "no algorithm/protocol available for function AllGather with datatype ncclFloat32.",
        "Key not found in topology",
        "http://localhost:8000/v1/health",
        "tokenizer loaded",
        "--tokenizer-type GPT2BPETokenizer --max-tokens 4096 --num-layers 24",
        "max_tokens=4096, hidden_size: 1024, token_count: 7, use_token=True",
        "n1:12:34 [0] NCCL INFO ncclCommInitRankConfig rank 0 nranks 8 commId 0xd5a1f7e3c2b4a697 - Init COMPLETE",
        "NCCL git version v2.30.7-1 HEAD 0123456789abcdef0123456789abcdef01234567 sha256:" + "0a1b" * 16,
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "frame #3: _ZN3c1013DynamicLibraryC1EPKcS2_b + 0x4d (/usr/lib/python3.11/site-packages/torch/lib/libc10.so)",
        '  File "/home/Alice/Projects2024/Megatron-LM/pretrain_gpt.py", line 123, in main',
        "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-8c9e4f3a-1b2d-4e5f-a6b7-c8d9e0f1a2b3)",
        "Connected to ssh://git@gitlab.example:22/x and http://10.0.0.1:8080/metrics and ib://[fe80::1]:4791",
        "docker run -u 1000:1000 nvcr.io/nvidia/pytorch:24.10-py3",
        "NCCL_ALGO_PAT=allgather NCCL_PAT_ENABLE=1",
    ]
    for text in cases:
        with subtests.test(text=text):
            assert without_secrets(text) == text


@given(st.text(max_size=300))
def test_any_text_is_taken(text):
    """And it is done after once."""
    once = without_secrets(text)
    assert isinstance(once, str)


@pytest.mark.shared
def test_real_outputs_stay_as_they_are(shared_data):
    """What NCCL, nccl-tests, Slurm and SuperBench print: not a word is taken for a secret."""
    files = [f for name in ("nccl-tests", "traces/nccl_log") for f in (shared_data / name).rglob("*") if f.is_file()]
    texts = [f.read_text(errors="replace") for f in files if f.suffix in (".log", ".txt")]
    pieces = [t[at : at + MOST_CHARACTERS // 2] for t in texts for at in range(0, len(t), MOST_CHARACTERS // 2)]
    assert len(pieces) > 20
    for piece in pieces:
        assert without_secrets(piece, environ={}) == piece


RANDOM = random.Random(7)
PIECES = (
    *("a", "_", "-", "://a:", "https://x/", "api key ", "curl ", " -u ", "login a password ", "a=", "a.b-", "token='"),
    *("x_key ", "//", "-----BEGIN A-----\n", "A" * 64 + "\n", "eyJ", "1a"),
)
UGLY = {
    "base64": "".join(RANDOM.choices(string.ascii_letters + string.digits + "+/", k=MOST_CHARACTERS)),
    **{piece: piece * (MOST_CHARACTERS // len(piece)) for piece in PIECES},
}


def test_no_text_takes_long():
    """No rule grows with the square of a line, nor does one of detect-secrets: the worst takes 2 s."""
    for name, text in UGLY.items():
        began_s = time.process_time()
        without_secrets(text, environ={})
        assert time.process_time() - began_s < 20, name


def test_no_command_takes_long():
    for word in ("eyJ" * 40_000, "-eyJ" * 30_000):
        began_s = time.process_time()
        words_without_secrets((word,), environ={})
        assert time.process_time() - began_s < 3, word[:4]


def test_a_value_is_not_kept_where_the_cut_takes_its_name():
    for line in (f"password: {HIDDEN}", f"Cookie: a=b; c={HIDDEN}", f"login me password {HIDDEN}"):
        for rest in ("\nlog line", " y"):
            end = rest * (MOST_CHARACTERS // len(rest))
            for cut in range(0, len(line), 6):
                text = f"{line[:cut]}{(line[cut:] + end)[:MOST_CHARACTERS]}"
                assert HIDDEN not in without_secrets(f"x {text}", environ={}), (line, cut)


def test_a_value_of_several_lines_is_removed_from_a_command():
    value = f"{HIDDEN}\nand more"
    assert words_without_secrets(("run", f"--x={value}"), environ={"MY_TOKEN": value}) == ("run", f"--x={REMOVED}")


def test_long_outputs_are_read_at_their_end_and_no_word_is_halved():
    secret = "aB3dE5fG7hI9jK1lM3nO5pQ7rS9tU1vW3xY5zA7b"
    text = "x" * 100 + f" {secret} " + "y " * ((MOST_CHARACTERS - 20) // 2)
    cut, _, rest = without_secrets(text).partition("]")
    assert cut == f"[{len(text) - len(rest):,} characters cut"
    assert set(rest) == {" ", "y"}
    assert without_secrets("x" * 70_000) == "[70,000 characters cut]"


def test_no_word_of_a_command_or_value_is_lost_by_its_length():
    words = ("python", "train.py", *(f"--option{number}=value" for number in range(500)), "a/" * 40_000, "last")
    assert words_without_secrets(words) == words
    assert variables_without_secrets((("NCCL_X", words[-2]),)) == (("NCCL_X", words[-2]),)


def test_the_library_is_imported_by_a_failure_alone():
    program = (
        "import sys\nfrom ncclt.measure.redact import without_secrets\nassert 'detect_secrets' not in sys.modules\n"
        "without_secrets('x')\nassert 'detect_secrets' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, env=dict(os.environ))


@given(st.text("abcdefgh", min_size=6, max_size=12), st.text("mnopq", min_size=1, max_size=8))
def test_of_two_secrets_one_the_beginning_of_the_other_no_character_remains(short, end):
    for environ in ({"A_TOKEN": short, "B_TOKEN": short + end}, {"A_TOKEN": short + end, "B_TOKEN": short}):
        cleaned = without_secrets(f"({short}{end}) ({short})", environ=environ)
        assert cleaned == f"({REMOVED}) ({REMOVED})"
        assert words_without_secrets([short + end, short], environ=environ) == (REMOVED, REMOVED)
