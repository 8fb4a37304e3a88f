"""The end-to-end proof: real step times of a training under two environments, and what they say."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ncclt.core.recommendation import Verdict, verdict_from_document
from ncclt.errors import InputError

VERIFICATION_SCHEMA = 1
"""Version of the verification document."""

PERCENTILES = (50, 75, 90, 95)
"""Those that papers on training speed print."""

Variables = tuple[tuple[str, str], ...]
"""Environment variables, (name, value), sorted by name."""


class Side(StrEnum):
    """The two environments: A is compared with, B is judged."""

    BASE = "base"
    TUNED = "tuned"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLaunch:
    """One launch of the training.

    Attributes:
        side: its environment.
        order: counts all launches from 0, so that the interleaving can be seen.
        step_us: time of each measured step on its slowest rank, µs; empty where the launch failed.
        failure: what went wrong, with the last lines of output; empty when nothing did.
    """

    side: Side
    order: int
    step_us: tuple[float, ...] = ()
    failure: str = ""

    @property
    def time_us(self) -> float | None:
        """Return the step time of the launch, µs: the median over its steps; None where it failed."""
        return statistics.median(self.step_us) if self.step_us else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The verdict of real step times, with everything it rests on.

    Attributes:
        id: identifies it.
        cluster, model: names of cluster and workload; empty where two environments of the user were compared.
        recommendation: id of the one that was verified; empty likewise.
        argv: the training's command line.
        base_env, tuned_env: what each side sets.
        removed_env: names of inherited variables that no side got.
        warmup, steps: steps of each launch before the measured ones, and measured ones.
        ranks, hosts: how many gave times; 0 where no launch did.
        launches: in order.
        verdict: about the step time; its times are µs per step.
        notes: what the reader must know.
        created: ISO time.
    """

    id: str
    cluster: str
    model: str
    recommendation: str
    argv: tuple[str, ...]
    base_env: Variables
    tuned_env: Variables
    removed_env: tuple[str, ...]
    warmup: int
    steps: int
    ranks: int
    hosts: int
    launches: tuple[StepLaunch, ...]
    verdict: Verdict
    notes: tuple[str, ...]
    created: str

    def step_us(self, side: Side) -> tuple[float, ...]:
        """Return the times of all measured steps of a side, µs, in order."""
        return tuple(time for launch in self.launches if launch.side is side for time in launch.step_us)

    def percentiles(self, side: Side) -> dict[int, float]:
        """Return `PERCENTILES` of the step time of a side, µs; empty where it has no times."""
        times_us = self.step_us(side)
        return {percent: percentile(times_us, percent) for percent in PERCENTILES} if times_us else {}

    def to_document(self) -> dict[str, Any]:
        """Return the verification as the JSON document that is stored and printed."""
        return {
            "schema": VERIFICATION_SCHEMA,
            "id": self.id,
            "cluster": self.cluster,
            "model": self.model,
            "recommendation": self.recommendation,
            "argv": list(self.argv),
            "base_env": dict(self.base_env),
            "tuned_env": dict(self.tuned_env),
            "removed_env": list(self.removed_env),
            "warmup": self.warmup,
            "steps": self.steps,
            "ranks": self.ranks,
            "hosts": self.hosts,
            "verdict": self.verdict.to_document(),
            "percentiles_us": {
                side.value: {f"p{percent}": time for percent, time in self.percentiles(side).items()} for side in Side
            },
            "launches": [
                {"side": launch.side.value, "order": launch.order, "step_us": list(launch.step_us),
                 "failure": launch.failure}
                for launch in self.launches
            ],
            "notes": list(self.notes),
            "created": self.created,
        }  # fmt: skip


def verification_from_document(document: Mapping[str, Any]) -> Verification:
    """Read back what `Verification.to_document` wrote; percentiles are computed again.

    Raises:
        InputError: the document is not one, or of another schema.
    """
    try:
        if document["schema"] != VERIFICATION_SCHEMA:
            raise InputError(f"verification schema {document['schema']!r} is not supported", hint="update ncclt")
        return Verification(
            id=str(document["id"]),
            cluster=str(document["cluster"]),
            model=str(document["model"]),
            recommendation=str(document["recommendation"]),
            argv=tuple(str(word) for word in document["argv"]),
            base_env=sorted_variables(document["base_env"]),
            tuned_env=sorted_variables(document["tuned_env"]),
            removed_env=tuple(str(name) for name in document["removed_env"]),
            warmup=int(document["warmup"]),
            steps=int(document["steps"]),
            ranks=int(document["ranks"]),
            hosts=int(document["hosts"]),
            launches=tuple(_launch_from_row(row) for row in document["launches"]),
            verdict=verdict_from_document(document["verdict"]),
            notes=tuple(str(note) for note in document["notes"]),
            created=str(document["created"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"this is not a verification: {type(error).__name__}: {error}", hint="verify again with `ncclt verify`"
        ) from error


def _launch_from_row(row: Mapping[str, Any]) -> StepLaunch:
    return StepLaunch(
        side=Side(row["side"]),
        order=int(row["order"]),
        step_us=tuple(float(time) for time in row["step_us"]),
        failure=str(row["failure"]),
    )


def sorted_variables(variables: Mapping[str, str]) -> Variables:
    """Return variables in the order in which they are kept."""
    return tuple(sorted((str(name), str(value)) for name, value in variables.items()))


def percentile(values: Sequence[float], percent: float) -> float:
    """Return a percentile of one or more values, linear between neighbours (numpy's default, R's type 7).

    Args:
        values: in any order.
        percent: 0 to 100.
    """
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    below, above = ordered[math.floor(place)], ordered[math.ceil(place)]
    return below + (above - below) * (place - math.floor(place))
