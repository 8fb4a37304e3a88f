"""The pages agree with the tree and the code; `make docs` checks the rest, anchors among them."""

import ast
import importlib
import importlib.util
import re
import shlex
from pathlib import Path

import pytest

from ncclt.user_dirs import recorded_tables

pytestmark = pytest.mark.docs

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SITE = sorted(DOCS.rglob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *SITE]
PLACES = [ROOT, ROOT / "tests", ROOT / "tests" / "unit", ROOT / "tuner" / "ncclt", ROOT / "tuner/ncclt/health/doctor"]
"""Folders that paths on pages begin at."""
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_FENCED = re.compile(r"^```([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def _name(path):
    return str(path.relative_to(ROOT))


def _links(page):
    """Return (path, anchor) of the links of a page to this repository."""
    links = _LINK.findall(_FENCED.sub("", page.read_text()))
    return [(path, anchor) for path, _, anchor in (link.partition("#") for link in links if "://" not in link)]


def test_links_point_to_files():
    missing = [(_name(page), path) for page in PAGES for path, _ in _links(page) if not (page.parent / path).exists()]
    assert missing == []


def _anchors(page):
    """Return the anchors that GitHub gives the headings of a page, without those of repeated ones."""
    headings = re.findall(r"^#+ (.+)$", _FENCED.sub("", page.read_text()), re.MULTILINE)
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower() for heading in headings]
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in plain}


def test_links_point_to_headings():
    """Those of GitHub; the site knows more."""
    missing = [
        (_name(page), path, anchor)
        for page in PAGES
        for path, anchor in _links(page)
        if anchor and (to := page.parent / path if path else page).suffix == ".md" and anchor not in _anchors(to)
    ]
    assert missing == []


def _entries(page):
    """Yield the pages that the toctrees of a page name."""
    for kind, block in _FENCED.findall(page.read_text()):
        lines = [line for line in block.splitlines() if line and not line.startswith(":")]
        if kind == "{toctree}" and ":glob:" in block:
            yield from (path for line in lines for path in page.parent.glob(f"{line}.md"))
        elif kind == "{toctree}":
            yield from (page.parent / f"{line}.md" for line in lines)


def test_every_page_is_in_a_toctree():
    reached, new = set(), {DOCS / "index.md"}
    while new:
        reached |= new
        new = {entry for page in new for entry in _entries(page)} - reached
    assert sorted(map(_name, reached)) == sorted(map(_name, SITE))


def test_every_variable_of_the_code_is_explained():
    explained = set(re.findall(r"^\| `(NCCLT_[A-Z_]+)` \|", (DOCS / "reference" / "variables.md").read_text(), re.M))
    assert explained == _variables_of_the_code()


def _variables_of_the_code():
    from ncclt.cli.configuration import KEYS

    # The first is a probe of the contract tests.
    found = {f"NCCLT_{key.upper()}" for key in KEYS} - {"NCCLT_CONTRACT"}
    for folder in ("tuner", "api"):
        for path in (ROOT / folder).rglob("*.py"):
            if "testing" not in path.parts:
                for node in ast.walk(ast.parse(path.read_text())):
                    if isinstance(node, ast.Constant) and isinstance(node.value, str):
                        found |= set(re.findall(r"^NCCLT_[A-Z_]*[A-Z]\Z", node.value))
                        found |= set(re.findall(r"\bexport (NCCLT_[A-Z_]*[A-Z])=", node.value))
    for path in (ROOT / "plugin").glob("*.c"):
        found |= set(re.findall(r'"(NCCLT_[A-Z_]+)"', path.read_text()))
    return found | set(re.findall(r"\$\{(NCCLT_[A-Z_]+)", (ROOT / "docker-compose.yml").read_text()))


@pytest.fixture(scope="module")
def known_options():
    """Return what the reference is made of: command -> its options."""
    spec = importlib.util.spec_from_file_location("generated_pages", DOCS / "_extensions" / "generated_pages.py")
    pages = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pages)
    return {name: pages.options_of(name, command) for name, command in pages.commands()}


def _examples(page):
    """Yield every line of a page that starts ncclt, and the words behind `ncclt` up to `--`."""
    for kind, block in _FENCED.findall(page.read_text()):
        if kind not in ("sh", "console"):
            continue
        for line in block.replace("\\\n", " ").splitlines():
            for text in re.findall(r"(?:^|[\s(])ncclt ((?:[^|;&>)#]|(?<=\S)#)*)", line):
                words = shlex.split(text.replace("`", "").replace('"', ""))
                yield line, words[: words.index("--")] if "--" in words else words


@pytest.fixture(scope="module")
def examples():
    """Return (page, line, words) of the examples outside the transcript, whose commands are run."""
    found = [(_name(page), *one) for page in PAGES if page.name != "transcript.md" for one in _examples(page)]
    assert len(found) > 40
    return found


def test_examples_use_commands_and_options_that_exist(examples, known_options):
    wrong = []
    for page, line, words in examples:
        name = next((name for count in (3, 2) if (name := " ".join(words[:count])) in known_options), words[0])
        given = {word.partition("=")[0] for word in words if word.startswith("-") and len(word) > 1}
        if name not in known_options or given - known_options[name]:
            wrong.append((page, line))
    assert wrong == []


def test_what_was_recorded_is_asked_for_as_such(examples):
    """Without `--allow recorded` a job gets nothing of a recorded cluster; the transcript shows that."""
    recorded = set(recorded_tables())
    refused = [
        (page, line)
        for page, line, words in examples
        if words[0] in ("env", "run") and set(words) & recorded and "--allow" not in words
    ]
    assert refused == []


def test_files_that_a_page_names_exist():
    """Files of measurements are those of their day."""
    named = {
        (_name(page), path)
        for page in PAGES
        if page.parent.name != "measurements"
        for path in re.findall(r"`([a-z0-9_./]+\.(?:py|c|h))`", page.read_text())
    }
    missing = [one for one in sorted(named) if not any((place / one[1]).is_file() for place in PLACES)]
    assert named
    assert missing == []


def test_classes_of_the_plugin_api_exist():
    """Those that its page documents, and their members; `make docs` alone would tell later."""
    page = (DOCS / "reference" / "plugin-api.md").read_text()
    entries = re.findall(r"^\.\. auto\w+:: (ncclt[\w.]*)\.(\w+)\n(?:   :members: (.+)\n)?", page, re.MULTILINE)
    missing = []
    for module, name, members in entries:
        found = getattr(importlib.import_module(module), name, None)
        missing += [(module, name, m) for m in filter(None, members.split(", ")) if not hasattr(found, m)]
        missing += [(module, name)] if found is None else []
    assert len(entries) > 15
    assert missing == []
