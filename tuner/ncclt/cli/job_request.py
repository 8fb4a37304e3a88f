"""The job that a recommendation is requested for: from its options, completed from its launcher."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from ncclt.core.nccl_version import NcclVersion
from ncclt.core.recommendation import ORIGIN_WORDS, SHAPE_PARTS, Request
from ncclt.core.trial import TimesOrigin
from ncclt.deliver.job_info import JobInfo, Sourced, name_for_rollout
from ncclt.errors import NoRecommendationError, UsageError

_ALLOWABLE = tuple(map(str, ORIGIN_WORDS))


def add_conditions(parser: argparse.ArgumentParser) -> None:
    """Add the options that narrow or widen the results that a job may get."""
    parser.add_argument(
        "--allow",
        action="append",
        choices=_ALLOWABLE,
        help="Accept recorded or simulated results too; repeatable. [NCCLT_ALLOW]",
    )
    conditions = parser.add_argument_group("Conditions")
    conditions.add_argument("--driver", metavar="VERSION", help="Required NVIDIA driver of the measurement.")
    conditions.add_argument("--topology", metavar="HASH", help="Required topology of the measurement.")
    conditions.add_argument(
        "--allow-difference",
        action="append",
        metavar="NAME",
        default=[],
        help="Accept another value of this variable, GPU, NO_GPU or FABRIC; repeatable. [NCCLT_ALLOW_DIFFERENCE]",
    )


def allowed_differences(given: Sequence[str]) -> list[str]:
    """Return the differences that --allow-difference and NCCLT_ALLOW_DIFFERENCE accept."""
    return [*given, *os.environ.get("NCCLT_ALLOW_DIFFERENCE", "").replace(",", " ").split()]


def with_allowed(request: Request, given: Sequence[str] | None) -> Request:
    """Return a request with what --allow permits, else NCCLT_ALLOW.

    Raises:
        UsageError: something else is named.
    """
    words = set(given or os.environ.get("NCCLT_ALLOW", "").replace(",", " ").split())
    if unknown := words.difference(_ALLOWABLE):
        name = "--allow" if given else "NCCLT_ALLOW"
        raise UsageError(f"{name} is {min(unknown)!r}", hint=f"it is one or more of {', '.join(_ALLOWABLE)}")
    return replace(request, allowed=frozenset(map(TimesOrigin, words)))


@contextmanager
def job_request(arguments: argparse.Namespace, job: JobInfo, cluster: str) -> Iterator[Request]:
    """Yield the request for a job: its options, completed by what is known of it.

    Args:
        arguments: with model, nodes, gpus_per_node and nccl_version, the last three None if not given.
        job: what it is.
        cluster: its name.

    Raises:
        NoRecommendationError: an option contradicts the command or its launcher; or the block raised it, to
            which the parts taken from the launcher are added.
    """
    asked = {part: getattr(arguments, part) for part in SHAPE_PARTS}
    if asked["nccl_version"]:
        asked["nccl_version"] = str(NcclVersion.parse(asked["nccl_version"]))
    for part, value in asked.items():
        if value is not None and part in job.shape and job.shape[part].binding and job.shape[part].value != value:
            raise NoRecommendationError(
                f"--{part.replace('_', '-')} {value} contradicts the job: {_describe(part, job.shape[part])}",
                hint="leave the option out, or give it as the job has it",
            )
    taken = {part: job.shape[part] for part, value in asked.items() if value is None and part in job.shape}
    request = Request(
        cluster=cluster,
        model=arguments.model,
        **{**asked, **{part: one.value for part, one in taken.items()}},
        driver=arguments.driver,
        topology_hash=arguments.topology,
        job=name_for_rollout(job.environ, job.argv, named=getattr(arguments, "job", None), nodes=arguments.nodes),
    )
    try:
        yield with_allowed(request, arguments.allow)
    except NoRecommendationError as error:
        if not taken:
            raise
        seen = "; ".join(_describe(part, one) for part, one in taken.items())
        raise type(error)(f"{error.message} ({seen})", hint=error.hint, available=error.available) from error


def _describe(part: str, said: Sourced) -> str:
    return f"{SHAPE_PARTS[part]} {said.value} from {said.source}"
