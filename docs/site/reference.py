"""The reference pages, written from the code: configuration keys, commands, Python names, results.json.

A page of the reference has a line `<!-- generated: NAME -->`, which `fill` replaces when the site is built.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from pydantic import BaseModel

import agentest
from agentest.cli.main import cli
from agentest.config.agent_types import settings_class
from agentest.config.config import Config
from agentest.plugin import PLUGINS

_ARGUMENTS = re.compile(r"(Args|Returns|Raises|Attributes):$")
_ARGUMENT = re.compile(r" {4}(\*{0,2}\w+): (.+)$")
_QUOTED = re.compile(r"(: |-> )'([^']*)'")
_TABLE_ROW = re.compile(r"^\| (`\w+`(?:, `\w+`)*) \|[^|]*\| (.+) \|$", re.M)
MARKER = re.compile(r"^<!-- generated: (\w+) -->$", re.M)
HEAD = ("key", "meaning", "type", "default")
Schema = Mapping[str, Any]


def fill(text: str) -> str:
    """Replace the markers of a page with what they name."""
    return MARKER.sub(lambda match: GENERATED[match[1]](), text)


def configuration() -> str:
    """A table of keys for the whole configuration, and for each of its parts."""
    parts: dict[str, Schema] = {}
    table = _settings(Config, parts)
    return _with_contents({"Top level": [table], **_parts(parts)})


def agents() -> str:
    """The keys that most types of agents share, those of each type alone, and those of their parts."""
    own, parts = _agents()
    shown = {f"Type `{name}`": own[name] for name in own if name != EVERY}
    return _with_contents({EVERY: own[EVERY], **shown, **_parts(parts)})


EVERY = "Keys of most types"
ROWS = re.compile(r"^\| `.*$", re.M)


def _agents() -> tuple[dict[str, list[str]], dict[str, Schema]]:
    """The text of each type of agent without the rows that most share, and the schemas of their parts."""
    parts: dict[str, Schema] = {}
    tables = {name: _settings(settings_class(name), parts) for name in PLUGINS.all("agent type")}
    times = Counter(row for table in tables.values() for row in ROWS.findall(table))
    shared = [row for row, number in times.items() if number > len(tables) / 2]
    text = {EVERY: [_table(HEAD, []) + "\n" + "\n".join(shared)]}
    for name, table in tables.items():
        own = [line for line in table.split("\n") if line not in shared]
        lacking = [key for row in shared if f"| {(key := row.split('|')[1].strip())} |" not in table]
        lacks = [f"It has no {', '.join(lacking)}."] if lacking else []
        text[name] = [_first_line(settings_class(name)), "\n".join(own) if len(own) > 2 else "", *lacks]
    return text, parts


def _parts(parts: Mapping[str, Schema]) -> dict[str, list[str]]:
    text = {}
    for name, part in sorted(parts.items()):
        rows = [
            (key, _type(value), _default(value), value.get("description", ""))
            for key, value in part.get("properties", {}).items()
        ]
        if rows:
            text[name] = [str(part.get("description", "")).split("\n\n")[0], _key_table(rows)]
    return text


def _with_contents(sections: Mapping[str, Sequence[str]]) -> str:
    """Sections below a line that links to each of them, for screens that show no table of contents."""
    links = [f"[{title}](#{_anchor(title)})" for title in sections]
    text = [" · ".join(links)]
    for title, content in sections.items():
        text += [f"## {title}", *content]
    return "\n\n".join(part for part in text if part)


def _anchor(title: str) -> str:
    return title.lower().replace("`", "").replace(" ", "-")


def _settings(settings: type[BaseModel], parts: dict[str, Schema]) -> str:
    schema = settings.model_json_schema()
    schema = _inline(schema, schema.get("$defs", {}))
    parts.update(schema.get("$defs", {}))
    meanings = {**(_guide() if settings is Config else {}), **_attribute_docstrings(settings)}
    required = schema.get("required", [])
    rows = [
        (
            key,
            _type(value),
            "required" if key in required else _default(value),
            meanings.get(key) or value.get("description", ""),
        )
        for key, value in schema["properties"].items()
    ]
    return _key_table(rows)


def _inline(value: Any, definitions: Schema) -> Any:
    """A schema in which references to what has no keys of its own are replaced by what they mean."""
    if isinstance(value, list):
        return [_inline(item, definitions) for item in value]
    if not isinstance(value, dict):
        return value
    definition = definitions.get(str(value.get("$ref", "")).rsplit("/", 1)[-1], {})
    if definition and not definition.get("properties"):
        return _inline({**definition, **value, "$ref": None}, {})
    return {key: _inline(item, definitions) for key, item in value.items()}


def _guide() -> dict[str, str]:
    """What the table in docs/configuration.md says of each key."""
    text = (Path(__file__).parent.parent / "configuration.md").read_text("utf-8")
    rows = _TABLE_ROW.findall(text.replace("](#", "](configuration.md#"))
    return {key: meaning for keys, meaning in rows for key in re.findall(r"\w+", keys)}


def _key_table(rows: Sequence[tuple[str, str, str, str]]) -> str:
    with_code = [
        (f"`{key}`", meaning, kind, default if default in ("", "required") else f"`{default}`")
        for key, kind, default, meaning in rows
    ]
    return _table(HEAD, with_code)


def _attribute_docstrings(settings: type[BaseModel]) -> dict[str, str]:
    """The strings below attributes of a class and of its bases."""
    found = {}
    for cls in reversed(settings.__mro__):
        if cls is BaseModel or not issubclass(cls, BaseModel):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
        assert isinstance(body, ast.ClassDef)
        for statement, following in zip(body.body, body.body[1:], strict=False):
            match statement, following:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    found[name] = inspect.cleandoc(text)
    return found


def _type(schema: Schema) -> str:
    """A JSON Schema in a few words."""
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return ", ".join(f"`{json.dumps(value)}`" for value in values)
    if schema.get("$ref"):
        name = str(schema["$ref"]).rsplit("/", 1)[-1]
        return f"[{name}](#{name.lower()})"
    for key in ("anyOf", "oneOf", "allOf"):
        if key in schema:
            kinds = dict.fromkeys(_type(one) for one in schema[key] if one.get("type") != "null")
            return " or ".join(kinds) if any(kinds) else "agent"
    kind = schema.get("type", "")
    if isinstance(kind, list):
        return " or ".join(name for name in kind if name != "null")
    if kind == "array":
        return f"list of {_type(schema.get('items', {})) or 'any'}"
    if kind == "object":
        values = schema.get("additionalProperties")
        return f"mapping to {_type(values)}" if isinstance(values, dict) and _type(values) else "mapping"
    limits = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "ge": "≥", "gt": ">", "le": "≤"}
    return " ".join([str(kind), *(f"{sign} {schema[key]}" for key, sign in limits.items() if key in schema)])


def _default(schema: Schema) -> str:
    default = schema.get("default")
    return "" if default in (None, [], {}, "") else json.dumps(default, ensure_ascii=False)


RUNNING = ("chat", "compare", "eval", "explore", "judge", "merge", "run", "runs", "show", "ui")


def running() -> str:
    """The commands that run scenarios, and look at what came of it."""
    return _commands_of(RUNNING)


def authoring() -> str:
    """The other commands: they set up, write and check."""
    return _commands_of([name for name in cli.commands if name not in RUNNING])


def _commands_of(names: Sequence[str]) -> str:
    context = click.Context(cli, info_name="agentest", **cli.context_settings)
    shown = {
        name: list(_commands(command, click.Context(command, info_name=name, parent=context)))
        for name, command in sorted(cli.commands.items())
        if name in names
    }
    links = [f"[{name}](#agentest-{name})" for name, text in shown.items() if text]
    return "\n\n".join([" · ".join(links), *(part for text in shown.values() for part in text)])


def _commands(command: click.Command, context: click.Context) -> Iterator[str]:
    if command.hidden:
        return
    if context.parent:
        yield f"{'#' * (_depth(context) + 1)} {context.command_path}"
        yield inspect.cleandoc(command.help or "").replace("\b\n", "")
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    yield f"```text\n{usage}\n```"
    rows = []
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record:
            rows.append((f"`{record[0]}`", " ".join(record[1].split())))
    if rows:
        yield _table(("option", "meaning"), rows)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from _commands(child, click.Context(child, info_name=name, parent=context))


def _depth(context: click.Context) -> int:
    return 0 if context.parent is None else 1 + _depth(context.parent)


def python_names() -> str:
    """What the package exports, with signatures and docstrings."""
    groups: dict[str, list[str]] = {"Functions": [], "Classes": [], "Values and modules": []}
    for name in sorted(agentest.__all__, key=str.lower):
        value = getattr(agentest, name)
        if inspect.isclass(value):
            groups["Classes"].append(_class(name, value))
        elif callable(value):
            signature = _signature(name, value)
            groups["Functions"].append(f"### {name}\n\n{signature}\n\n{_docstring(value)}")
        else:
            about = (inspect.getdoc(value) or "") if inspect.ismodule(value) else ""
            groups["Values and modules"].append(f"### {name}\n\n{_first_paragraph(about)}")
    return "\n\n".join(
        f"## {title}\n\n" + "\n\n".join(entry.rstrip() for entry in entries)
        for title, entries in groups.items()
        if entries
    )


def _class(name: str, cls: type) -> str:
    text = [f"### {name}"]
    constructor = _signature(name, cls)
    if not issubclass(cls, Exception) and "Literal" not in str(cls):
        text.append(constructor)
    text.append(_docstring(cls))
    rows = []
    for key, member in vars(cls).items():
        if key.startswith("_") or not (inspect.isfunction(member) or isinstance(member, property)):
            continue
        about = _first_paragraph(inspect.getdoc(member) or "")
        if about:
            rows.append((f"`{key}`" if isinstance(member, property) else f"`{key}()`", about))
    if rows:
        text.append(_table(("member", "meaning"), rows))
    return "\n\n".join(part for part in text if part)


def _signature(name: str, value: Callable[..., Any]) -> str:
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    parameters = [_QUOTED.sub(r"\1\2", str(parameter)) for parameter in signature.parameters.values()]
    one_line = f"{name}({', '.join(parameters)})"
    if len(one_line) > 100:
        one_line = f"{name}(\n" + "".join(f"    {parameter},\n" for parameter in parameters) + ")"
    return f"```python\n{one_line}\n```"


def _docstring(value: object) -> str:
    """A docstring as Markdown: the entries of `Args:` and its like are lists."""
    lines = []
    for line in (inspect.getdoc(value) or "").splitlines():
        entry = _ARGUMENT.match(line)
        if _ARGUMENTS.match(line):
            lines += ["", f"**{line.rstrip(':')}**", ""]
        elif entry:
            lines.append(f"- `{entry[1]}`: {entry[2]}")
        else:
            lines.append(line)
    return "\n".join(lines)


def results() -> str:
    """Every key of results.json, from its JSON Schema."""
    schema = json.loads(
        (Path(agentest.__file__).parent / "schemas" / "results.schema.json").read_text("utf-8")
    )
    text = ["## The file", _object(schema)]
    for name, part in schema.get("$defs", {}).items():
        text.append(f"## {name}")
        if part.get("description"):
            text.append(part["description"])
        text.append(_object(part) if "properties" in part else _type(part))
    return "\n\n".join(part for part in text if part)


def _object(schema: Schema) -> str:
    return _table(("key", "type", "meaning"), list(_keys(schema, "")))


def _keys(schema: Schema, path: str) -> Iterator[tuple[str, str, str]]:
    required = schema.get("required", [])
    for key, value in schema.get("properties", {}).items():
        optional = "" if key in required else " (optional)"
        yield f"`{path}{key}`{optional}", _type(value), value.get("description", "")
        items = value.get("items", {}) if value.get("type") == "array" else {}
        values = value.get("additionalProperties")
        yield from _keys(value, f"{path}{key}.")
        yield from _keys(items, f"{path}{key}[].")
        if isinstance(values, dict):
            yield from _keys(values, f"{path}{key}.*.")


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(_cell(cell) for cell in line)} |" for line in lines)


def _cell(text: str) -> str:
    """Text for a cell: angle brackets are escaped outside of code."""
    parts = " ".join(text.split()).replace("|", "\\|").split("`")
    parts[::2] = [part.replace("<", "&lt;") for part in parts[::2]]
    return "`".join(parts)


def _first_line(value: object) -> str:
    return (inspect.getdoc(value) or "").partition("\n")[0]


def _first_paragraph(text: str) -> str:
    return " ".join(text.partition("\n\n")[0].split())


GENERATED: dict[str, Callable[[], str]] = {
    "configuration": configuration,
    "agents": agents,
    "running": running,
    "authoring": authoring,
    "python": python_names,
    "results": results,
}
