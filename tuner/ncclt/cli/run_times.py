"""`ncclt run --report --step-times`: the step times of a job of a roll-out, taken by its ranks and reported at its end.

The ranks take them as in `ncclt verify`: a hook of the torch optimizer, for a window of steps and no longer.
"""

from __future__ import annotations

import os
import socket
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ncclt.cli.output import say
from ncclt.core.rollout import Variant
from ncclt.deliver.answer import Answer, api_key, error_from_client
from ncclt.errors import InputError
from ncclt.profile.record.plan import FOLDERS, WINDOW_STEPS, Method, plan_recording
from ncclt.profile.record.ranks import read_step_times
from ncclt.user_dirs import account_name

_FOLDER = "steps"

WARMUP_STEPS = 50
"""Steps before the window: more than in `ncclt verify`, since caches and file systems of a real job warm up longer."""


def timed_variables(folder: Path, command: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Write what the ranks need to take step times, and return the variables for it.

    Raises:
        UsageError: the folder's name cannot be carried by a variable.
        OSError: it cannot be written.
    """
    place = folder.absolute() / _FOLDER
    recording = plan_recording(
        command, folder=place, environ=environ, method=Method.TORCH, warmup=WARMUP_STEPS, times_only=True
    )
    for name in FOLDERS:
        (place / name).mkdir(parents=True, exist_ok=True)
    for path, content in recording.files:
        (place / path).write_text(content, encoding="utf-8")
    return dict(recording.set_env)


def report_times(
    answer: Answer,
    job: str,
    *,
    folder: Path,
    where: Callable[[], tuple[str | None, str | None]],
    timeout_s: float,
) -> None:
    """Report the median step time of the job to its server, else to the local store, and say what the guard says.

    Raises:
        InputError: the ranks recorded no step times.
        NotFoundError, StoreError, ServerError: it cannot be kept.
    """
    times = read_step_times(folder / _FOLDER, steps=WINDOW_STEPS)
    if times.failure:
        raise InputError(f"no step times: {times.failure}", hint="a training without a torch optimizer has none")
    step_us = statistics.median(times.step_us)
    told: dict[str, Any] = {
        "rollout": answer.rollout,
        "job": job,
        "recommendation": "" if answer.variant == Variant.DEFAULT else answer.recommendation,
        "step_us": step_us,
        "steps": len(times.step_us),
    }
    server, storage = where()
    if server:
        from ncclt.client.fetch import ClientError
        from ncclt.client.report import post_step_time

        try:
            said = post_step_time(
                server, {"ticket": answer.ticket, **told}, timeout_s=timeout_s, api_key=api_key(os.environ)
            )
        except ClientError as error:
            raise error_from_client(error) from error
        state, why = said["state"], said["reason"]
    else:
        from ncclt.core.rollout import JobTime
        from ncclt.prove.rollout import report_job_time
        from ncclt.store import open_store

        time = JobTime(**told, who=account_name(), address=socket.gethostname())
        with open_store(storage) as store:
            verdict = report_job_time(store, answer.ticket, time)
        state, why = verdict.state.value, verdict.reason
    say(f"ncclt: step time {step_us / 1e3:.2f} ms reported as {answer.variant}; roll-out {state}: {why}")
