"""Secrets do not leave the machine with the last lines of a failed trial."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclt.launched.secrets import without_secrets

HIDDEN = "s3cr3t-Val"


@pytest.mark.parametrize(
    "text",
    [
        f"HF_TOKEN={HIDDEN}",
        f"WANDB_API_KEY: {HIDDEN}",
        f"AWS_SECRET_ACCESS_KEY={HIDDEN} NCCL_ALGO=Ring",
        f'{{"password": "{HIDDEN}", "x": 1}}',
        f"db_passwd='{HIDDEN}'",
        f"--password {HIDDEN}",
        f"--auth-token={HIDDEN}",
        f"postgresql://ncclt:{HIDDEN}@db.example/ncclt",
        f"Authorization: Bearer {HIDDEN}",
        "pull failed for hf_s3cr3tVal",
        "token ghp_0123456789abcdefABCDEF",
        "AKIA0123456789ABCDEF",
    ],
)
def test_what_looks_like_a_secret_is_removed(text):
    """By its name, by its place or by its form; what stands around it stays."""
    shown = without_secrets(f"before {text} after")
    assert HIDDEN not in shown
    assert not {"s3cr3tVal", "0123456789abcdefABCDEF", "AKIA0123456789ABCDEF"} & set(shown.replace("_", " ").split())
    assert "[removed]" in shown
    assert shown.startswith("before ")
    assert shown.endswith(" after")


@pytest.mark.parametrize(
    "text",
    [
        "host:12:34 [0] NCCL WARN [Rem Allocator] Allocation failed",
        "        1024           256     float     sum      -1    20.11    0.05    0.08       0",
        "no algorithm/protocol available for function AllGather with datatype ncclFloat32.",
        "Key not found in topology",
        "http://localhost:8000/v1/health",
        "tokenizer loaded",
    ],
)
def test_ordinary_lines_stay_as_they_are(text):
    """They are what people need."""
    assert without_secrets(text) == text


@given(st.text(max_size=300))
def test_any_text_is_taken(text):
    """And it is done after once."""
    once = without_secrets(text)
    assert isinstance(once, str)
