"""A study as one file to send around: its page with styles, scripts and charts in it, which loads nothing."""

from __future__ import annotations

import base64
import hashlib
import html
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from ncclt.core.study import Study
from ncclt.store.store import Store
from ncclt_api.pages.environment import render_page
from ncclt_api.pages.study import StudyPages
from ncclt_api.pages.trials import TrialChoice

_ASSETS = Path(__file__).parent / "assets"

_LIVE = "/assets/vendor/htmx"
"""Loads parts of pages from the service, so it has no place in a file."""


def study_report(store: Store, study: Study, *, now: datetime | None = None) -> str:
    """Return the report of a study: HTML that loads nothing.

    Args:
        store: where the study is.
        study: the study.
        now: time of the report; None = the current one.
    """
    now = now or datetime.now(UTC)
    values: dict[str, Any] = StudyPages(lambda: store)(study, server="", choice=TrialChoice(sort="time"), now=now)
    values |= {"frame": "report.html", "in_report": True, "made": now.strftime("%Y-%m-%d %H:%M UTC"), "is_live": False}
    return self_contained(render_page("study.html", **values))


def self_contained(page: str) -> str:
    """Return a page with its styles and scripts in it, and without everything that leads to the service.

    Its content security policy forbids requests and all other scripts.
    """
    rewriter = _Rewriter()
    rewriter.feed(page)
    rewriter.close()
    return rewriter.document()


class _Rewriter(HTMLParser):
    """Rewriter of a page; `convert_charrefs` is off, so that text keeps its escapes."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=False)
        self._out: list[str] = []
        self._styles: list[str] = []
        self._scripts: list[str] = []
        self._skipped: list[str] = []  # open elements that are left out, the innermost last

    def document(self) -> str:
        """Return the file."""
        scripts = [*self._scripts, _asset("/assets/print.js")]
        policy = (
            f"default-src 'none'; style-src {' '.join(map(_hash, self._styles))}; "
            f"script-src {' '.join(map(_hash, scripts))}; base-uri 'none'; form-action 'none'"
        )
        head = f'<head>\n<meta http-equiv="Content-Security-Policy" content="{policy}">'
        styles = "".join(f"<style>{text}</style>\n" for text in self._styles)
        page = "".join(self._out).replace("<head>", head, 1).replace("</head>", f"{styles}</head>", 1)
        ending = "".join(f"<script>{text}</script>\n" for text in scripts)
        before, body, after = page.rpartition("</body>")
        return f"{before}{ending}{body}{after}"

    def handle_decl(self, decl: str) -> None:
        """Copy the document type."""
        self._out.append(f"<!{decl}>")

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Copy an element without what leads to the service; take in what it loads."""
        attributes = dict(attrs)
        source = attributes.get("src") or ""
        if tag == "link":
            if attributes.get("rel") == "stylesheet":
                self._styles.append(_asset(attributes.get("href") or ""))
        elif tag == "script" and source:
            if not source.startswith(_LIVE):
                self._scripts.append(_asset(source))
            self._skipped.append(tag)
        elif tag == "form":
            self._skipped.append(tag)
        elif not self._skipped and not (tag == "meta" and attributes.get("name") == "htmx-config"):
            self._out.append(f"<{tag}{''.join(_attribute(tag, name, value) for name, value in attrs)}>")

    def handle_endtag(self, tag: str) -> None:
        """Copy the end of an element."""
        if self._skipped and tag == self._skipped[-1]:
            self._skipped.pop()
        elif not self._skipped:
            self._out.append(f"</{tag}>")

    def handle_data(self, data: str) -> None:
        """Copy text."""
        if not self._skipped:
            self._out.append(data)

    def handle_entityref(self, name: str) -> None:
        """Copy a named character."""
        self.handle_data(f"&{name};")

    def handle_charref(self, name: str) -> None:
        """Copy a numbered character."""
        self.handle_data(f"&#{name};")


def _attribute(tag: str, name: str, value: str | None) -> str:
    """Return an attribute; empty for one that would make a request, or a link to where no service is."""
    leads = name in ("href", "src", "action", "srcset", "poster", "formaction", "ping")
    if name.startswith(("hx-", "on")) or (leads and not (tag == "a" and (value or "").startswith("#"))):
        return ""
    return f" {name}" if value is None else f' {name}="{html.escape(value)}"'


def _asset(address: str) -> str:
    """Return the text of a file that a page of ours loads, fit to stand in the page."""
    return (_ASSETS / address.removeprefix("/assets/")).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
