"""The job that a recommendation is requested for: from its options, completed from its launcher."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from ncclt.core.nccl_version import NcclVersion
from ncclt.core.recommendation import ORIGIN_WORDS, SHAPE_PARTS, Request, TimesOrigin
from ncclt.deliver.job import name_for_roll_out
from ncclt.deliver.job_shape import ShapePart, shape_of
from ncclt.errors import NoRecommendationError, UsageError

_ALLOWABLE = tuple(map(str, ORIGIN_WORDS))


def add_limits(parser: argparse.ArgumentParser) -> None:
    """Add the options that narrow or widen what a job may be given."""
    parser.add_argument("--driver", metavar="VERSION", help="only what was measured with this NVIDIA driver")
    parser.add_argument("--topology", metavar="HASH", help="only what was measured on this topology")
    parser.add_argument(
        "--allow",
        action="append",
        choices=_ALLOWABLE,
        help="also accept a result that was recorded elsewhere or simulated; may be repeated [NCCLT_ALLOW]",
    )


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
def job_request(arguments: argparse.Namespace, command: Sequence[str] = ()) -> Iterator[argparse.Namespace]:
    """Yield the arguments with the job's shape and name completed as far as they are known.

    Args:
        arguments: with nodes, gpus_per_node and nccl_version, each None if its option was not given.
        command: what will be started; empty if not known.

    Raises:
        NoRecommendationError: an option contradicts the command or its launcher; or the block raised it, to
            which the parts taken from the launcher are added.
    """
    said = shape_of(command, os.environ, nodes=arguments.nodes, gpus_per_node=arguments.gpus_per_node)
    asked = {part: getattr(arguments, part) for part in SHAPE_PARTS}
    if asked["nccl_version"]:
        asked["nccl_version"] = str(NcclVersion.parse(asked["nccl_version"]))
    for part, value in asked.items():
        if value is not None and part in said and said[part].binding and said[part].value != value:
            raise NoRecommendationError(
                f"--{part.replace('_', '-')} {value} contradicts the job: {_words(part, said[part])}",
                hint="leave the option out, or give it as the job has it",
            )
    taken = {part: said[part] for part, value in asked.items() if value is None and part in said}
    completed = {**asked, **{part: one.value for part, one in taken.items()}}
    named = getattr(arguments, "job", None)
    completed["job_name"] = name_for_roll_out(os.environ, command, named=named, nodes=arguments.nodes)
    try:
        yield argparse.Namespace(**{**vars(arguments), **completed})
    except NoRecommendationError as error:
        if not taken:
            raise
        seen = "; ".join(_words(part, one) for part, one in taken.items())
        raise type(error)(f"{error.message} ({seen})", hint=error.hint, available=error.available) from error


def _words(part: str, said: ShapePart) -> str:
    return f"{SHAPE_PARTS[part]} {said.value} by {said.by}"


def request_of(arguments: argparse.Namespace, cluster: str) -> Request:
    """Return the request for a job that `job_request` has completed."""
    request = Request(
        cluster=cluster,
        model=arguments.model,
        nodes=arguments.nodes,
        gpus_per_node=arguments.gpus_per_node,
        nccl_version=arguments.nccl_version,
        driver=arguments.driver,
        topology_hash=arguments.topology,
        job=arguments.job_name,
    )
    return with_allowed(request, arguments.allow)
