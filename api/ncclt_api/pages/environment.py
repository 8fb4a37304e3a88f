"""The Jinja environment: everything is escaped, an unknown name is an error."""

from __future__ import annotations

import shlex
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ncclt import __version__
from ncclt.core.algorithms import Algorithm
from ncclt.core.message import format_bytes
from ncclt.core.study import Phase
from ncclt.core.trial import Outcome
from ncclt.deliver.render.delivery import channels_words
from ncclt_api.pages import wording
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
        "time": wording.format_time,
        "us": wording.format_us,
        "speedup": wording.format_speedup,
        "interval": wording.format_interval,
        "saving": wording.format_saving,
        "bandwidth": wording.format_bandwidth,
        "count": wording.format_count,
        "whole": wording.format_whole,
        "change": wording.format_change,
        "code": wording.with_code,
        "command": wording.whole_options,
        "hours": wording.format_hours,
        "range": wording.format_range,
        "size": format_bytes,
        "channels": channels_words,
        "quoted": shlex.quote,
        "middle": wording.cut_in_the_middle,
        # Jinja's own fails on text that is no Unicode.
        "urlencode": lambda text: quote(readable(str(text))),
    }
    environment.globals |= {"version": __version__, "dash": wording.NONE}
    environment.globals |= {
        f"trial_{name}": [(one.value, one.value.replace("_", " ")) for one in words]
        for name, words in (("phases", Phase), ("outcomes", Outcome), ("algorithms", Algorithm))
    }
    return environment


def render_page(template: str, **values: Any) -> str:
    """Return the HTML of one template.

    Args:
        template: name of its file.
        values: what the template shows.
    """
    page: str = readable(_environment().get_template(template).render(**values))
    return page
