"""ncclt: find the fastest NCCL settings for a training job, validate them, and deploy them.

The public Python API; everything below this module may change from release to release:

- `read_workload`: trace files of a job -> `Workload`
- `tune`: `Workload`, `Target` (where trials run) and `Budget` (limits of a study) -> `TuneResult`, with its `Verdict`
- `open_store`: the `Store` that keeps studies and recommendations
- `fetch_env`: the recommended environment of a job from a server, or `ClientError`

All other errors of ncclt are `NccltError`s with `message` and `hint`. Importing ncclt imports nothing else: every name
loads its module on first use.
"""

from __future__ import annotations

TYPE_CHECKING = False  # `import typing` is what `ncclt env` would wait for
if TYPE_CHECKING:
    from typing import Any

    from ncclt.cli.python import tune as tune
    from ncclt.client.fetch import ClientError as ClientError
    from ncclt.client.fetch import Reply as Reply
    from ncclt.client.fetch import fetch_env as fetch_env
    from ncclt.core.budget import Budget as Budget
    from ncclt.core.cluster import Cluster as Cluster
    from ncclt.core.recommendation import Verdict as Verdict
    from ncclt.core.workload import Workload as Workload
    from ncclt.errors import NccltError as NccltError
    from ncclt.measure.target import Target as Target
    from ncclt.pipeline.tune import TuneResult as TuneResult
    from ncclt.profile import read_workload as read_workload
    from ncclt.store import Store as Store
    from ncclt.store import open_store as open_store

__version__ = "0.1.0"

_LATER = {
    "ClientError": "ncclt.client.fetch",
    "Cluster": "ncclt.core.cluster",
    "Budget": "ncclt.core.budget",
    "Reply": "ncclt.client.fetch",
    "NccltError": "ncclt.errors",
    "Store": "ncclt.store",
    "Target": "ncclt.measure.target",
    "TuneResult": "ncclt.pipeline.tune",
    "Verdict": "ncclt.core.recommendation",
    "Workload": "ncclt.core.workload",
    "fetch_env": "ncclt.client.fetch",
    "open_store": "ncclt.store",
    "read_workload": "ncclt.profile",
    "tune": "ncclt.cli.python",
}
"""Name of the public API -> the module that has it."""

__all__ = ["__version__", *_LATER]


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LATER[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
