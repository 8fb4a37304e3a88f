"""Ask a server, with only the standard library: this folder can be copied into any training image.

`from ncclt.client import fetch_env`; where the folder is copied, `from client import fetch_env`.
"""

from __future__ import annotations

__all__ = ("ClientError", "fetch_env", "fetch_recommendation", "post_attestation", "post_step_time")


def __getattr__(name: str) -> object:
    """Load the networking on first use: rendering an answer needs none."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import fetch, report

    return getattr(report if name.startswith("post_") else fetch, name)
