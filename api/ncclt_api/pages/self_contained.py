"""Turns a page into one file: styles and scripts are put into it, and everything that leads to the service goes."""

from __future__ import annotations

import base64
import hashlib
import html
from html.parser import HTMLParser
from pathlib import Path

_ASSETS = Path(__file__).parent / "assets"

_LIVE = "/assets/vendor/htmx"
"""Loads parts of pages from the service, so it has no place in a file."""


def self_contained(page: str) -> str:
    """Return a page of ours as a file that makes no request, whichever styles and scripts the page has.

    Its own policy forbids requests and any script but those in it, should anything be left in it anyway.
    """
    made = _Rewriter()
    made.feed(page)
    made.close()
    return made.document()


class _Rewriter(HTMLParser):
    """Copies a page; `convert_charrefs` is off, so that text stays exactly as it was escaped."""

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
        given = dict(attrs)
        source = given.get("src") or ""
        if tag == "link":
            if given.get("rel") == "stylesheet":
                self._styles.append(_asset(given.get("href") or ""))
        elif tag == "script" and source:
            if not source.startswith(_LIVE):
                self._scripts.append(_asset(source))
            self._skipped.append(tag)
        elif tag == "form":
            self._skipped.append(tag)
        elif not self._skipped and not (tag == "meta" and given.get("name") == "htmx-config"):
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
