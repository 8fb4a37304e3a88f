"""Texts that users see are plain English: no word that only this project knows, no phrase that sounds translated.

Looked at are the texts given to errors and hints, to typer's options and argparse's, to print and say, and the pages;
so are docstrings and comments.
"""

import ast
import io
import re
import tokenize
from pathlib import Path

ROOT = Path(__file__).parents[2]
CODE = [*sorted((ROOT / "tuner" / "ncclt").rglob("*.py")), *sorted((ROOT / "api" / "ncclt_api").rglob("*.py"))]
PAGES = sorted((ROOT / "api" / "ncclt_api").rglob("*.html"))

FORBIDDEN = {
    r"\b(?:handover|soundings?|ground|remark|canary)s?\b": "a word of the code: write what the user knows it as",
    r"\b(?:is|are) told\b": "receives, gets",
    r"\b(?:he|she|him|his|her|whoever|whose word)\b": "you, the user, or who it is",
    r"\b(?:lies|lie) (?:in|on|at|there|here)\b": "is in",
    r"\bmeans? nothing (?:to|where|for)\b": "does not apply to",
    r"(?<!there )\b(?:is|or) no (?:[A-Z]\w*|file|text|list|table|number|name|size|host|record|report|log|trace)\b": (
        "is not a"
    ),
    r"\bby its word\b": "according to",
    r"\bworth a thought\b": "candidate",
    r"\b(?:does|do) not go with\b|\bcannot go with\b": "cannot be combined with",
    r"--[\w-]+ go(?:es)? with\b": "needs",
    r"\bexclude each other\b": "cannot be combined",
    r"\b(?:same )?command goes on\b": "run the same command to resume",
    r"\bLeft out:|; left out:": "Default:",
    r"\band leave\.": "and exit.",
    r"\banew\b": "again",
    r"\bis not ours\b": "is not supported",
    r"\ball the same\b": "anyway",
    r"\btid(?:y|ies) up\b": "clean up",
    r"\b(?:nobody|somebody|everybody)\b": "no node, a user, all users",
    r"\b(?:is another one|its checksum is another)\b": "differs, has changed",
    r"\bbehind --": "after --",
    r"\bis meant when\b": "Default:",
}
FORBIDDEN_INSIDE = {
    r"\b(?:is|are|was|were|be|been|unless) told\b|\btold of\b": "receives, is called with, is configured",
    r"\b(?:Tell|tell) whether\b": "Return whether",
    r"\b(?:he|she|him|his|himself|her|whoever)\b": "what it is: the caller, a process, the user",
    r"\b(?:nobody|somebody|everybody|anybody)\b": "no process, another user, all ranks",
    r"\b[Hh]ears? (?:of|from|it|every|all)\b|\bis heard\b": "receives",
    r"\b(?:lie|lies) (?:in|on|at|there|here|between|around|above|below|evenly)\b": "is in",
    r"\banew\b(?!:)|\b(?:all the same|as it were)\b": "again, anyway",
    r"\b(?:is|are) gone\b": "has ended, was lost, was removed",
    r"\bgoes on\b": "continues, resumes",
    r"\bby (?:its|their) word\b|\bworth a thought\b": "according to, candidate",
    r"\bthat is none\b|\bthat are none\b|(?<!there )(?<!so )\bis none(?=[.,:;)]|$)": "is invalid, is missing",
    r"\bfor people\b": "as text, for messages, as shown to users",
    r"\b(?:Not tried|not tried|proven) (?:on|with|under) (?:a|an|the|gloo)\b": "not tested on",
    r"\bcomes? into force\b|\bin force\b": "takes effect",
    r"\b(?:can|cannot|could|must|does not|do not|to) be told\b|\bnot told\b": "is known, is distinguished",
    r"\btells? (?:apart|of|which|what|nothing|anything|no|the)\b|\b(?:not|nothing|cannot) tells?(?!`)\b": "shows, has",
    r"\basked for separately\b|\b(?:is|are) asked for\b": "is requested",
    r"\bof one's own\b": "the user's own",
    r"\bWork out\b|\bworked out\b": "Return, computed",
    r"\bmakes? no sense\b": "is invalid",
    r"\bworth being\b|\bwhat stands\b": "what still holds, what precedes it",
    r"\bwritten down\b": "recorded, stored",
    r"\bwhat came of\b|\bwhat becomes? of\b|\bwhat became of\b": "the outcome",
}
"""In docstrings and comments."""

SHOWN = ("print", "say", "tell", "warn", "echo", "Option", "Argument", "add_argument", "Typer")


def shown(call):
    """Whether the arguments of a call are read by people."""
    function = call.func
    name = function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
    return name.endswith("Error") or name in SHOWN


def parts(node):
    """The constant texts below a node, docstrings and names of keys apart."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Constant) and isinstance(inner.value, str) and " " in inner.value.strip():
            yield inner.lineno, inner.value


def texts(tree):
    """Every text of a module that is shown, with its line; help texts of commands are their docstrings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and shown(node):
            for argument in (*node.args, *(word.value for word in node.keywords)):
                yield from parts(argument)
        elif isinstance(node, ast.Call):
            for word in node.keywords:
                if word.arg in ("hint", "help"):
                    yield from parts(word.value)
        elif isinstance(node, ast.FunctionDef) and any("command" in ast.unparse(d) for d in node.decorator_list):
            yield node.lineno, ast.get_docstring(node) or ""


def inside(source):
    """Every docstring, comment and note below a name of a module, with its line."""
    for node in ast.walk(ast.parse(source)):
        for part in getattr(node, "body", ()) if isinstance(getattr(node, "body", ()), list) else ():
            if (
                isinstance(part, ast.Expr)
                and isinstance(part.value, ast.Constant)
                and isinstance(part.value.value, str)
            ):
                yield part.lineno, " ".join(part.value.value.split())
    block, begin = [], 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            begin = begin if block else token.start[0]
            block.append(token.string.lstrip("# "))
        elif token.type != tokenize.NL and block:
            yield begin, " ".join(block)
            block = []


def complaints(text, place, forbidden=FORBIDDEN):
    return [
        f"{place}: {found[0]!r}: {instead}" for word, instead in forbidden.items() if (found := re.search(word, text))
    ]


def test_the_texts_of_the_code_are_plain():
    found = [
        complaint
        for path in CODE
        for line, text in dict.fromkeys(texts(ast.parse(path.read_text(encoding="utf-8"))))
        for complaint in complaints(text, f"{path.relative_to(ROOT)}:{line}")
    ]
    assert CODE
    assert found == [], "\n".join(found)


def test_docstrings_and_comments_are_plain():
    found = [
        complaint
        for path in CODE
        for line, text in inside(path.read_text(encoding="utf-8"))
        for complaint in complaints(text, f"{path.relative_to(ROOT)}:{line}", FORBIDDEN_INSIDE)
    ]
    assert found == [], "\n".join(found)


def test_the_texts_of_the_pages_are_plain():
    found = [
        complaint
        for path in PAGES
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        for complaint in complaints(re.sub(r"<[^>]*>|\{[{%#].*?[}%#]\}", "", line), f"{path.name}:{number}")
    ]
    assert PAGES
    assert found == [], "\n".join(found)


def test_a_bad_text_is_found_with_its_line():
    tree = ast.parse(
        'def f():\n    """Whoever reads this is no user."""\n    raise UsageError(f"{x} is no TOML", hint="a b")\n'
    )
    assert [c for line, text in texts(tree) for c in complaints(text, line)] == ["3: 'is no TOML': is not a"]


def test_a_bad_docstring_and_a_bad_comment_are_found_with_their_lines():
    source = '"""Nothing."""\n\nx = 1\n"""That nobody\nreads."""\n\n# A file\n# that is none.\ny = 2\n'
    bad = [c for line, text in inside(source) for c in complaints(text, line, FORBIDDEN_INSIDE)]
    assert [complaint.partition(": ")[0] for complaint in bad] == ["4", "7"]
