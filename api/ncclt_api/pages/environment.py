"""The Jinja environment: everything is escaped, an unknown name is an error."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ncclt import __version__
from ncclt.core.message import format_bytes
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
        "range": wording.format_range,
        "size": format_bytes,
        "channels": channels_words,
    }
    environment.globals |= {"version": __version__, "dash": wording.NONE}
    return environment


def render_page(template: str, **values: Any) -> str:
    """Return the HTML of one template."""
    page: str = readable(_environment().get_template(template).render(**values))
    return page
