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
from ncclt_api.pages.results import build_result, shade
from ncclt_api.text import readable


@cache
def build_environment() -> Environment:
    """Return the environment of all templates."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # A function `format_time` is the filter `time`.
    environment.filters |= {
        name.removeprefix("format_"): function for name, function in vars(wording).items() if name.startswith("format_")
    }
    environment.filters |= {
        "badge_class": wording.badge_class,
        "channels": describe_channels,
        "code": wording.with_code,
        "command": wording.whole_options,
        "count_noun": count_noun,
        "job_note": wording.note_job,
        "message": wording.describe_message,
        "middle": wording.cut_in_the_middle,
        "phase": wording.PHASES.__getitem__,
        "quoted": shlex.quote,
        "result": build_result,
        "sentence": wording.write_sentence,
        "shade": shade,
        "size": format_bytes,
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
    page: str = readable(build_environment().get_template(template).render({"now": datetime.now(UTC), **values}))
    return page
