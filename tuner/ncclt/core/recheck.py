"""The record of one check of a recommendation: is it still worth being served?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ncclt.errors import InputError

CHECK_SCHEMA = 1
"""Version of the check document."""


class Freshness(StrEnum):
    """What a check finds."""

    FRESH = "fresh"
    STALE = "stale"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One quantity, before and now.

    Attributes:
        what: for people.
        before, now: medians, in the quantity's own unit.
        noise: by how much the ratio may differ from 1 without meaning anything, as a share.
        changed: the difference exceeds both the noise and what was to be tolerated.
    """

    what: str
    before: float
    now: float
    noise: float
    changed: bool

    @property
    def ratio(self) -> float:
        """Return now over before."""
        return self.now / self.before

    def to_document(self) -> dict[str, Any]:
        """Return the change as a JSON object."""
        return {
            "what": self.what,
            "before": self.before,
            "now": self.now,
            "noise": self.noise,
            "changed": self.changed,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check.

    Attributes:
        id: identifies it.
        recommendation: id of what was checked.
        cluster, model: its names.
        freshness: the newest check of a recommendation decides whether it is served.
        reasons: why it is stale, for people; empty when it is fresh.
        changes: everything that was compared.
        launches: made for it.
        launcher: where they ran; empty when nothing had to be launched.
        created: ISO time.
        driver: NVIDIA's on the nodes, with commas where they differ; empty where it is not known.
    """

    id: str
    recommendation: str
    cluster: str
    model: str
    freshness: Freshness
    reasons: tuple[str, ...]
    changes: tuple[Change, ...]
    launches: int
    launcher: str
    created: str
    driver: str = ""

    @property
    def staleness(self) -> str:
        """Return one sentence that says since when and why the recommendation is stale; empty when it is fresh."""
        if self.freshness is Freshness.FRESH:
            return ""
        return f"the check of {self.created[:19]} found: {'; '.join(self.reasons)}"

    def to_document(self) -> dict[str, Any]:
        """Return the check as the JSON document that is stored and printed."""
        return {
            "schema": CHECK_SCHEMA,
            "id": self.id,
            "recommendation": self.recommendation,
            "cluster": self.cluster,
            "model": self.model,
            "freshness": self.freshness.value,
            "reasons": list(self.reasons),
            "changes": [change.to_document() for change in self.changes],
            "launches": self.launches,
            "launcher": self.launcher,
            "created": self.created,
            "driver": self.driver,
        }


def check_from_document(document: Mapping[str, Any]) -> Check:
    """Read back what `Check.to_document` wrote.

    Raises:
        InputError: the document is not one, or of another schema.
    """
    try:
        if document["schema"] != CHECK_SCHEMA:
            raise InputError(f"check schema {document['schema']!r} is not supported", hint="update ncclt")
        return Check(
            id=str(document["id"]),
            recommendation=str(document["recommendation"]),
            cluster=str(document["cluster"]),
            model=str(document["model"]),
            freshness=Freshness(document["freshness"]),
            reasons=tuple(str(reason) for reason in document["reasons"]),
            changes=tuple(_change_from_row(row) for row in document["changes"]),
            launches=int(document["launches"]),
            launcher=str(document["launcher"]),
            created=str(document["created"]),
            # The first checks do not say it.
            driver=str(document.get("driver", "")),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"this is not a check: {type(error).__name__}: {error}", hint="check again with `ncclt check`"
        ) from error


def _change_from_row(row: Mapping[str, Any]) -> Change:
    return Change(
        what=str(row["what"]),
        before=float(row["before"]),
        now=float(row["now"]),
        noise=float(row["noise"]),
        changed=bool(row["changed"]),
    )
