"""The Jinja environment: everything is escaped, an unknown name is an error."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ncclt import __version__
from ncclt.core.algorithms import Algorithm
from ncclt.core.message import format_bytes
from ncclt.core.plural import count_noun
from ncclt.core.trial import Outcome
from ncclt.deliver.render.delivery import describe_channels
from ncclt_api.pages import wording
from ncclt_api.pages.charts import interval_picture
from ncclt_api.pages.cluster import heat
from ncclt_api.pages.home import shade
from ncclt_api.pages.results import build_result
from ncclt_api.pages.trials import describe_message, describe_use
from ncclt_api.text import readable


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "phase": wording.PHASES.__getitem__,
        "picture": interval_picture,
        "shade": shade,
        "ago": wording.format_age,
        "heat": heat,
        "message": describe_message,
        "use": describe_use,
        "badge_class": wording.badge_class,
        "result": build_result,
        "shape": wording.format_shape,
        "state": wording.format_state,
        "time": wording.format_time,
        "when": wording.format_when,
        "us": wording.format_us,
        "speedup": wording.format_speedup,
        "interval": wording.format_interval,
        "saving": wording.format_saving,
        "bandwidth": wording.format_bandwidth,
        "count_noun": count_noun,
        "job_note": wording.note_job,
        "count": wording.format_count,
        "whole": wording.format_whole,
        "change": wording.format_change,
        "code": wording.with_code,
        "command": wording.whole_options,
        "hours": wording.format_hours,
        "range": wording.format_range,
        "size": format_bytes,
        "channels": describe_channels,
        "quoted": shlex.quote,
        "middle": wording.cut_in_the_middle,
        # Jinja's own fails on text that is no Unicode.
        "urlencode": lambda text: quote(readable(str(text)), safe=""),
    }
    environment.globals |= {"version": __version__, "dash": wording.NONE}
    environment.globals |= {
        "trial_phases": [(phase.value, name) for phase, name in wording.PHASES.items()],
        "trial_outcomes": [(outcome.value, wording.format_state(outcome)) for outcome in Outcome],
        "trial_algorithms": [(algorithm.value, wording.format_state(algorithm)) for algorithm in Algorithm],
    }
    return environment


def render_page(template: str, **values: Any) -> str:
    """Return the HTML of one template.

    Args:
        template: name of its file.
        values: of the template; `now`, for ages, is the current time unless it is among them.
    """
    page: str = readable(_environment().get_template(template).render({"now": datetime.now(UTC), **values}))
    return page
