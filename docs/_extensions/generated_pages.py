"""Pages of the reference that are written from the code each time the site is built.

A page says where: the line `<!-- generated: NAME -->` is replaced by what the function of that name in `GENERATORS`
returns, as MyST Markdown.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

ROOT = Path(__file__).parents[2]
_MARK = re.compile(r"<!-- generated: ([a-z]+) -->")
_PLAIN = ("env", "run")
"""Commands with a parser of argparse, whose own help is the reference."""


def commands() -> Iterator[tuple[str, Any]]:
    """Yield every command of the command line: its words behind `ncclt`, and the framework's object."""
    import typer

    from ncclt.cli.application import app
    from ncclt.cli.help import walk

    root = typer.main.get_command(app)
    yield from walk(root, typer.Context(root))


def plain_parser(name: str) -> Any:
    """Return the argparse parser of `ncclt env` or `ncclt run`."""
    if name == "env":
        from ncclt.cli.env import parser
    else:
        from ncclt.cli.run_prepare import parser
    return parser()


def options_of(name: str, command: Any) -> set[str]:
    """Return all options that a command takes, such as `--model`."""
    if name in _PLAIN:
        return {word for action in plain_parser(name)._actions for word in action.option_strings}
    shared = {"--help", "-h", "--help-all", "--storage"}
    return {word for one in command.params for word in (*one.opts, *one.secondary_opts)} | shared


def command_line() -> str:
    """Return one section per command."""
    from ncclt.cli.application import GROUPS

    sections = [
        f"- {heading}: " + ", ".join(f"[{name}](#ncclt-{name})" for name in names) for heading, names in GROUPS.items()
    ]
    sections[-1] += "\n"
    for name, command in commands():
        if name in _PLAIN:
            sections.append(f"## ncclt {name}\n\n```text\n{plain_parser(name).format_all().rstrip()}\n```\n")
            continue
        level = "###" if " " in name else "##"
        lines = [f"{level} ncclt {name}", "", _escaped(command.help or "")]
        below = sorted(getattr(command, "commands", {}))
        if below:
            lines += ["", "Commands: " + ", ".join(f"[{word}](#ncclt-{name}-{word})" for word in below) + "."]
        else:
            lines += ["", f"```{{program}} ncclt {name}\n```", ""]
            heading = None
            for one in command.params:
                if text := _parameter(one):
                    if one.rich_help_panel != heading:
                        heading = one.rich_help_panel
                        lines += [f"**{heading}**", ""]
                    lines.append(text)
        if command.epilog:
            lines += ["", _escaped(command.epilog)]
        sections.append("\n".join(lines) + "\n")
    return "\n".join(sections)


def _parameter(one: Any) -> str:
    if one.name == "help":
        return ""
    if one.param_type_name == "argument":
        signature = one.name.upper() + (" ..." if one.nargs == -1 else "")
    else:
        kind = _kind(one)
        signature = ", ".join(f"{word}{kind}" for word in (*one.opts, *one.secondary_opts))
    facts = []
    if one.required:
        facts.append("Required.")
    if getattr(one, "multiple", False) and "repeatable" not in (one.help or ""):
        facts.append("Repeatable.")
    if isinstance(one.default, str | int | float) and not isinstance(one.default, bool):
        default = "the Python that runs ncclt" if one.default == sys.executable else f"`{one.default}`"
        facts.append(f"Default: {default}.")
    if one.envvar:
        facts.append(f"Variable: `{one.envvar}`.")
    text = " ".join([_escaped(getattr(one, "help", None) or ""), *facts])
    return f"```{{option}} {signature}\n{text}\n```\n"


def _kind(option: Any) -> str:
    """Return what stands behind an option, with a blank before it; empty for a flag."""
    kind = option.type_descriptor.annotation
    kind = next(iter(get_args(kind)), kind) if get_origin(kind) is list else kind
    if kind is bool:
        return ""
    if option.metavar:
        return f" {option.metavar}"
    if get_origin(kind) is Literal:
        return " " + "|".join(get_args(kind))
    if issubclass(kind, Enum):
        return " " + "|".join(word.value for word in kind)
    return " " + {int: "N", float: "NUMBER", Path: "PATH"}.get(kind, "TEXT")


def _escaped(text: str) -> str:
    """Return plain text as Markdown; what stands between backticks stays code."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([\\*<>\[\]|#])", r"\\\1", part) for part in parts)


def rest_api() -> str:
    """Return one section per operation, and one per schema, of docs/openapi.json, which a test keeps true."""
    document = json.loads((ROOT / "docs" / "openapi.json").read_text(encoding="utf-8"))
    lines = []
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            lines += [f"## {method.upper()} {path}".replace("{", "\\{"), "", _escaped(operation["summary"]) + ".", ""]
            lines += [_escaped(operation.get("description", "")), ""]
            if parameters := operation.get("parameters"):
                lines += _table("parameter", [_api_parameter(one) for one in parameters])
            lines += ["| answer | body | meaning |", "|---|---|---|"]
            for code, answer in sorted(operation["responses"].items()):
                lines.append(f"| `{code}` | {_body(answer)} | {_cell(answer['description'])} |")
            lines.append("")
    lines += ["## Schemas", ""]
    for name, schema in document["components"]["schemas"].items():
        lines += [f"### {name}", "", _escaped(schema.get("description", "")), ""]
        if "enum" in schema:
            lines += ["One of " + ", ".join(f"`{word}`" for word in schema["enum"]) + ".", ""]
        required = schema.get("required", ())
        fields = [
            (field, field in required, _type(kind), kind.get("description", ""))
            for field, kind in schema.get("properties", {}).items()
        ]
        if fields:
            lines += _table("field", fields)
    return "\n".join(lines)


def _api_parameter(one: dict[str, Any]) -> tuple[str, bool, str, str]:
    return one["name"], one.get("required", False), _type(one["schema"]), one.get("description", "")


def _table(what: str, rows: list[tuple[str, bool, str, str]]) -> list[str]:
    lines = [f"| {what} | type | needed | meaning |", "|---|---|---|---|"]
    yes = {True: "yes", False: ""}
    return [
        *lines,
        *(f"| `{name}` | {kind} | {yes[needed]} | {_cell(text)} |" for name, needed, kind, text in rows),
        "",
    ]


def _cell(text: str) -> str:
    return _escaped(" ".join(text.split()))


def _body(answer: dict[str, Any]) -> str:
    return ", ".join(
        f"{_type(content['schema'])} (`{kind}`)" if content.get("schema") else f"`{kind}`"
        for kind, content in answer.get("content", {}).items()
    )


def _type(schema: dict[str, Any]) -> str:
    """Return a schema in a few words, with links to those that have a name."""
    if reference := schema.get("$ref"):
        name = reference.rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    for word in ("anyOf", "oneOf", "allOf"):
        if word in schema:
            return " or ".join(_type(one) for one in schema[word])
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return ", ".join(f"`{word}`" for word in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    return str(schema.get("type", "anything"))


def python_names() -> str:
    """Return the public names of the package `ncclt`, functions first; their capitals tell, without loading them."""
    import ncclt

    directives = {False: ".. autofunction:: ncclt.{}\n\n", True: ".. autoclass:: ncclt.{}\n   :members:\n\n"}
    names = [(name[0].isupper(), name) for name in ncclt.__all__ if name != "__version__"]
    text = "".join(directives[is_class].format(name) for is_class, name in sorted(names))
    return f"```{{eval-rst}}\n{text}```"


GENERATORS: dict[str, Callable[[], str]] = {"cli": command_line, "api": rest_api, "python": python_names}


def fill(_app: Any, _docname: str, source: list[str]) -> None:
    """Replace the marks of a page that was read."""
    source[0] = _MARK.sub(lambda mark: GENERATORS[mark[1]](), source[0])


def as_text(_app: Any, _what: str, _name: str, _object: Any, _options: Any, lines: list[str]) -> None:
    """Make reStructuredText of a docstring, which is plain text with code between single backticks."""
    for number, line in enumerate(lines):
        parts = re.split(r"`+([^`]+)`+", line)
        parts[::2] = [re.sub(r"[*|]|_(?!\w)", r"\\\g<0>", text) for text in parts[::2]]
        parts[1::2] = [f"``{code}``" for code in parts[1::2]]
        lines[number] = "".join(parts)


def setup(app: Any) -> dict[str, bool]:
    """Join in whenever Sphinx has read a page or a docstring."""
    app.connect("source-read", fill)
    app.connect("autodoc-process-docstring", as_text, priority=400)  # before napoleon
    return {"parallel_read_safe": True}
