"""Generate the JSON Schemas that editors use for agentest.config.yaml and `*.sim.yaml`.

Keys come from the models of the configuration, from the signature of `scenario()` and from the parsers of
expectations; descriptions come from their docstrings. A parser that gets a new key stops the generation until
its schema is added here. `python tests/support/editor_schemas.py` rewrites the stored files.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

from pydantic import BaseModel

import agentest
from agentest.config.agent_types import DEFAULT_TYPE, agent_keys, settings_class
from agentest.config.config import Config
from agentest.config.fields import Section
from agentest.domain.changes import GOALS, MODEL_FAULTS, SCHEMA_MODES, STRATEGIES, TECHNIQUES, TOOL_FAULTS
from agentest.plugin import PLUGINS, PluginRegistry, built_in_plugins, core_plugin
from agentest.scenarios import data_files, definition, model, options, parser, script, trajectory_parser
from agentest.scenarios.expectations import Expect, ExpectedRemark
from agentest.scenarios.mutations import OURS as MUTATIONS
from agentest.scenarios.options import COUNTS, PERSONAS
from agentest.scenarios.parser import names_of
from agentest.scenarios.trajectory import ARG_MATCH_MODES, MATCH_MODES

Schema = dict[str, Any]
FOLDER = Path(agentest.__file__).parent / "schemas"
DIALECT = "http://json-schema.org/draft-07/schema#"
"""The dialect that editors support best."""
_VARIABLE = r"\$\{"
_BOOLEANS = "0 1 true false yes no on off t f y n"


def camel(key: str) -> str:
    first, *rest = key.split("_")
    return first + "".join(part.title() for part in rest)


def both_spellings(schema: Schema) -> Schema:
    """Accept the keys of an object in camelCase, too. Editors suggest only snake_case."""
    properties = schema.get("properties", {})
    others = {
        camel(key): {
            **{name: part for name, part in value.items() if name != "description"},
            "doNotSuggest": True,
        }
        for key, value in properties.items()
        if camel(key) != key
    }
    required = [key for key in schema.get("required", ()) if camel(key) == key]
    either = [
        {"anyOf": [{"required": [key]}, {"required": [camel(key)]}]}
        for key in schema.get("required", ())
        if camel(key) != key
    ]
    made = {**schema, "properties": {**others, **properties}}
    made.pop("required", None)
    made |= {"required": required} if required else {}
    return made | ({"allOf": [*schema.get("allOf", ()), *either]} if either else {})


def any_of(*schemas: Schema) -> Schema:
    return {"anyOf": list(schemas)}


def docstrings(cls: type) -> dict[str, str]:
    """Return the docstrings below the attributes of a class and its bases."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if not (isinstance(base, type) and base.__module__.startswith("agentest")):
            continue
        [tree] = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(tree, ast.ClassDef)
        for before, after in zip(tree.body, tree.body[1:], strict=False):
            is_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            if isinstance(before, ast.AnnAssign) and isinstance(before.target, ast.Name) and is_text:
                found[before.target.id] = " ".join(str(after.value.value).split())  # type: ignore[attr-defined]
    return found


# The configuration


_ANY_OBJECT: Schema = {"type": "object"}
_TEXT: Schema = {"type": "string"}
_SHORT_FORMS: dict[tuple[str, str], Schema] = {
    ("AgentTool", ""): _TEXT,
    ("ValueSource", ""): _TEXT,
    ("ConfirmSettings", ""): _TEXT,
    ("Repeat", ""): _TEXT,
    ("Batch", ""): {"type": "boolean"},
    **{("*", key): {"type": "boolean"} for key in ("mcp_mock", "rest_mock", "model_gateway", "traces")},
    ("*", "protocol_version"): {"type": "number"},
    ("Server", "watch"): _TEXT,
    **{("HttpTemplateAgent", key): {"$ref": "#/$defs/SetUpRequest"} for key in ("setup", "teardown")},
    **{("HttpTemplateAgent", key): {"$ref": "#/$defs/TurnRequest"} for key in ("first", "then")},
    **{
        ("WebSocketAgent", key): {"type": ["object", "array", "string"]} for key in ("hello", "first", "then")
    },
    ("ReplyWebhook", "until"): {"type": ["object", "integer"]},
    ("SocketMessage", ""): {"type": ["object", "array", "string"]},
}
"""Class and field → a form that a validator converts before the model sees it."""
_LIMITS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}


def config_schema() -> Schema:
    definitions: Schema = {}
    top = _model_schema(Config, definitions)
    agents = {name: settings_class(name) for name in PLUGINS.all("agent type")}
    for cls in agents.values():
        definitions[cls.__name__] = _model_schema(cls, definitions)
    cases = [
        {
            "if": {"properties": {"type": {"const": name}}, "required": ["type"]},
            "then": {"$ref": f"#/$defs/{cls.__name__}"},
        }
        for name, cls in agents.items()
    ]
    cases.append(
        {
            "if": {"not": {"required": ["type"]}},
            "then": {"$ref": f"#/$defs/{agents[DEFAULT_TYPE].__name__}"},
        }
    )
    definitions["Agent"] = {
        "type": "object",
        "properties": {"type": _with_variables({"enum": list(agents)})},
        "allOf": cases,
    }
    keys = sorted(agent_keys())
    override = both_spellings({"type": "object", "properties": {key: {} for key in keys}})
    definitions["AgentOrOverride"] = {
        "if": {"required": ["type"]},
        "then": {"$ref": "#/$defs/Agent"},
        "else": {**override, "required": ["name"], "additionalProperties": False},
    }
    agent = {"$ref": "#/$defs/Agent"}
    top["properties"] |= {
        "agent": {"description": "The agent under test.", **_all_of(agent)},
        "agents": {
            "description": "Name → agent, for scenarios that name one.",
            "type": "object",
            "additionalProperties": agent,
        },
        "compare": {
            "description": "Agents to compare with `agent`: its changed keys, or whole agents.",
            "type": "array",
            "items": {"$ref": "#/$defs/AgentOrOverride"},
        },
    }
    reporters = PluginRegistry((core_plugin, built_in_plugins)).all("reporter")
    reporter = rf"^({'|'.join(reporters)})(=.+)?$|{_VARIABLE}"
    top["properties"]["reporters"] |= {"items": {"type": "string", "pattern": reporter}}
    top["not"] = {"required": ["repeat", "conversations_per_scenario"]}
    title = "Configuration of Agentest"
    return {"$schema": DIALECT, "title": title, **top, "$defs": dict(sorted(definitions.items()))}


def _all_of(schema: Schema) -> Schema:
    """Wrap a reference, so that it may have a description in draft 7."""
    return {"allOf": [schema]}


def _model_schema(cls: type[BaseModel], definitions: Schema) -> Schema:
    """Return the schema of a model, and add those of the models in it."""
    generated = cls.model_json_schema()
    inner = {sub.__name__: sub for sub in _sections(Section)}
    for name, schema in generated.pop("$defs", {}).items():
        known = inner.get(name)
        definitions[name] = _short_form(name, "", _completed(schema, known, name))
    return _completed(generated, cls, cls.__name__)


def _sections(base: type) -> Iterable[type]:
    for sub in base.__subclasses__():
        yield sub
        yield from _sections(sub)


def _completed(schema: Schema, cls: type | None, name: str) -> Schema:
    if "properties" not in schema:
        return _relaxed(schema)
    about = docstrings(cls) if cls else {}
    properties = {}
    for key, value in schema["properties"].items():
        relaxed = _short_form(name, key, _relaxed(value))
        properties[key] = {"description": about[key], **relaxed} if key in about else relaxed
    made = {**schema, "properties": properties}
    if {"endpoint", "app"} <= properties.keys() and "endpoint" not in schema.get("required", ()):
        made["anyOf"] = [{"required": ["endpoint"]}, {"required": ["app"]}]
    made.pop("title", None)
    return both_spellings(made)


def _short_form(name: str, key: str, schema: Schema) -> Schema:
    short = _SHORT_FORMS.get((name, key)) or _SHORT_FORMS.get(("*", key))
    if name == "AgentTool" and not key:  # declarations in the form of OpenAI, Anthropic and MCP
        return any_of(_TEXT, _ANY_OBJECT)
    return schema if short is None else any_of(short, schema)


def _relaxed(schema: Any) -> Any:
    """Return a schema that accepts what pydantic converts: `${VARIABLES}`, and texts of numbers."""
    if isinstance(schema, list):
        return [_relaxed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {
        _LIMITS.get(key, key): value if key in ("default", "enum", "const") else _relaxed(value)
        for key, value in schema.items()
        if key not in ("title", "allow_inf_nan") and not (key == "default" and value is None)
    }
    if "$ref" in kept and len(kept) > 1:
        return {**kept, **_all_of({"$ref": kept.pop("$ref")})}
    return _with_variables(kept) if "const" not in kept else kept


def _with_variables(schema: Schema) -> Schema:
    kind = schema.get("type")
    if kind in ("integer", "number"):
        number = rf"^\s*[+-]?[\d_]*\.?\d+([eE][+-]?\d+)?\s*$|{_VARIABLE}"
        converted = [{"type": "string", "pattern": number}]
    elif kind == "boolean":
        words = "|".join(
            "".join(f"[{c}{c.upper()}]" if c.isalpha() else c for c in w) for w in _BOOLEANS.split()
        )
        converted = [{"type": "string", "pattern": f"^({words})$|{_VARIABLE}"}, {"enum": [0, 1]}]
    elif "enum" in schema:
        converted = [{"type": "string", "pattern": _VARIABLE}]
    else:
        return schema
    outside = {key: schema[key] for key in ("default", "description") if key in schema}
    inside = {key: value for key, value in schema.items() if key not in outside}
    return {**outside, **any_of(inside, *converted)}


# Scenarios


_COLUMN: Schema = {"type": "string", "pattern": r"^\{[^{}]+\}$"}
"""A placeholder for a column of `each`, which may become any value."""
_FILLED_TEXT: Schema = {"type": "string", "minLength": 1}
_WHOLE = any_of({"type": "integer", "minimum": 1}, _COLUMN)
_COUNT = any_of({"type": "integer", "minimum": 0}, _COLUMN)
_NUMBER = any_of({"type": "number"}, _COLUMN)
_BOOLEAN = any_of({"type": "boolean"}, _COLUMN)
_OBJECT = any_of({"type": "object"}, _COLUMN)
_NULL: Schema = {"type": "null"}
_APPROVE = any_of(_BOOLEAN, {"type": "object", "additionalProperties": _BOOLEAN, "minProperties": 1})
_TEXTS = any_of({"type": "array", "items": {"type": "string"}}, _COLUMN)


def ref(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}


def one_or_more(schema: Schema) -> Schema:
    return any_of(schema, {"type": "array", "items": schema})


def an_object(
    about: str, keys: Iterable[str], table: Mapping[str, Schema], required: Iterable[str] = ()
) -> Schema:
    """Return the schema of an object whose keys a parser names."""
    if set(keys) != set(table):
        raise AssertionError(f"{about}: add or remove a schema for {sorted(set(keys) ^ set(table))}")
    made: Schema = {"type": "object", "properties": dict(table), "additionalProperties": False}
    made |= {"description": about, **({"required": list(required)} if required else {})}
    return both_spellings(made)


def only_key(word: str, kind: str, then: Schema) -> Schema:
    """Return a rule for an object whose only key is this one, with a value of this type."""
    spelt = [word] if camel(word) == word else [word, camel(word)]
    return {
        "if": {
            "type": "object",
            "maxProperties": 1,
            "anyOf": [{"required": [each], "properties": {each: {"type": kind}}} for each in spelt],
        },
        "then": {"properties": dict.fromkeys(spelt, then)},
    }


def _definitions() -> Schema:
    words = (*parser.WORDS, *(key for keys in parser._MORE_KEYS.values() for key in keys))
    mode: Schema = {"enum": [*ARG_MATCH_MODES]}
    name = any_of({"type": "string", "minLength": 1}, ref("Pattern"))
    calls = one_or_more(ref("Step"))
    demands = {
        "expected": calls,
        "expected_writes": calls,
        "forbidden": calls,
        **dict.fromkeys(("max_calls", "min_calls", "max_turns"), _COUNT),
        "max_calls_per_tool": any_of(_COUNT, {"type": "object", "additionalProperties": _COUNT}),
        **{key: {"type": "array", "minItems": 1} for key in trajectory_parser.ORDERS},
        "match_mode": {"enum": sorted({*MATCH_MODES, *map(camel, MATCH_MODES)})},
        "name": _FILLED_TEXT,
        **dict.fromkeys(("ignore_failed", "at_most_once", "rounds"), _BOOLEAN),
        "reads": one_or_more(name),
        "default_arg_match_mode": any_of(mode, {"type": "object", "additionalProperties": mode}),
    }
    call_keys = [key for key in trajectory_parser._CALL_KEYS if key != "where"]  # a function
    one_of_words = [{"required": [word]} for word in {*parser.WORDS, *map(camel, parser.WORDS)}]
    sayings = one_or_more(any_of(_FILLED_TEXT, ref("Matcher")))
    texts, count = one_or_more(_FILLED_TEXT), one_or_more(_COUNT)
    limit = one_or_more(any_of({"type": "number", "minimum": 0}, _COLUMN))
    patterns = one_or_more(any_of(_TEXT, ref("Pattern")))
    return {
        "Pattern": an_object(
            "A regular expression.",
            ("regex", *parser._MORE_KEYS["regex"]),
            {
                "regex": _TEXT,
                "ignore_case": _BOOLEAN,
                "flags": {"type": "string", "pattern": f"^[{''.join(parser._FLAGS)}]*$"},
            },
            ["regex"],
        ),
        "Matcher": {
            **an_object("A word in place of a value.", words, {key: {} for key in words}),
            "anyOf": sorted(one_of_words, key=str),
        },
        "Call": an_object(
            "A tool call.",
            call_keys,
            {
                "name": name,
                "args": any_of(_OBJECT, _NULL),
                "arg_match_mode": mode,
                "result": {},
                "first": _BOOLEAN,
                "last": _BOOLEAN,
                "nth": any_of({"type": "integer"}, _COLUMN),
            },
            ["name"],
        ),
        "Step": {
            "description": "A tool's name, a call, or alternatives.",
            "if": {
                "type": "object",
                "anyOf": sorted(
                    ({"required": [word]} for word in {*parser.CALL_WORDS, *map(camel, parser.CALL_WORDS)}),
                    key=str,
                ),
            },
            "then": both_spellings(
                {
                    "properties": {
                        "any_of": {"type": "array", "minItems": 1},
                        "exactly": any_of(_FILLED_TEXT, ref("Call")),
                        **{key: {"type": "array", "minItems": 2} for key in trajectory_parser.ORDERS},
                        **{key: {} for key in ("regex", *parser._MORE_KEYS["regex"])},
                    },
                    "additionalProperties": False,
                }
            ),
            "else": any_of(_FILLED_TEXT, ref("Call")),
        },
        "Trajectory": {
            **an_object(
                "Required, allowed and forbidden tool calls.",
                trajectory_parser.KEYS,
                {key: any_of(schema, _NULL) for key, schema in demands.items()},
            ),
            "anyOf": [
                {"required": [key]}
                for each in trajectory_parser.DEMANDS
                for key in dict.fromkeys((each, camel(each)))
            ],
        },
        "TurnExpect": {
            **an_object(
                "What a reply must be like.",
                names_of(Expect),
                {
                    "contains": texts,
                    "not_contains": texts,
                    "regex": patterns,
                    "json_schema": one_or_more(_ANY_OBJECT),
                    "max_words": count,
                    "max_latency_ms": limit,
                    "max_first_token_ms": limit,
                    "session_state": {"type": "object", "minProperties": 1},
                    "remarks": {"type": "array", "items": ref("Remark"), "minItems": 1},
                    "says": sayings,
                    "never_says": sayings,
                },
            ),
            "minProperties": 1,
        },
        "Remark": an_object(
            "A message before the reply.",
            names_of(ExpectedRemark),
            {
                "author": {},
                "contains": texts,
                "not_contains": texts,
                "regex": patterns,
                "equals": {},
            },
        ),
        "Expect": {
            **an_object(
                "What the agent says, and never says, in the conversation.",
                ("says", "never_says", "in_turn"),
                {"says": sayings, "never_says": sayings, "in_turn": any_of({"type": "integer"}, _COLUMN)},
            ),
            "anyOf": [{"required": [key]} for key in ("says", "never_says", "neverSays")],
        },
        "Turn": an_object(
            "A user message, and what must hold after the reply.",
            script.TURN_KEYS,
            {
                "user_message": _TEXT,
                "assertions": ref("Assertions"),
                "trajectory": one_or_more(ref("Trajectory")),
                "expect": ref("TurnExpect"),
                "approve": _APPROVE,
            },
            ["user_message"],
        ),
        "EarlierMessage": an_object(
            "A message before the first turn.",
            {key for keys in script.HISTORY_KEYS.values() for key in keys},
            {
                "role": {"enum": [*script.HISTORY_KEYS]},
                "content": {},
                "tool_calls": {"type": "array", "items": ref("EarlierCall")},
                "tool_call_id": _FILLED_TEXT,
            },
            ["role"],
        ),
        "File": an_object(
            "A file that the user attaches.", script.FILE_KEYS, dict.fromkeys(script.FILE_KEYS, _FILLED_TEXT)
        ),
        "EarlierCall": an_object(
            "A call before the first turn.",
            script.HISTORY_CALL_KEYS,
            {
                "name": _FILLED_TEXT,
                "args": {"type": ["object", "string"]},
                "result": {},
                "id": _FILLED_TEXT,
                "type": {"const": "function"},
                "function": _ANY_OBJECT,
            },
        ),
        "Assertions": an_object(
            "The original form of `trajectory`.",
            ("tool_calls",),
            {"tool_calls": one_or_more(ref("Trajectory"))},
            ["tool_calls"],
        ),
        "Mock": _mock(),
        "HttpResponse": an_object(
            "The response of a tool behind an HTTP API.",
            ("status", "body", "headers"),
            {
                "status": any_of({"type": "integer", "minimum": 200, "maximum": 599}, _COLUMN),
                "body": {},
                "headers": any_of({"type": "object"}, _NULL),
            },
            ["status"],
        ),
        "Session": an_object(
            "The agent's session.",
            model._SESSION_KEYS,
            {"state": _OBJECT, **dict.fromkeys(model._SESSION_KEYS[1:], _FILLED_TEXT)},
        ),
        "ModelFault": any_of(
            {"enum": [*MODEL_FAULTS]},
            an_object(
                "How the agent's model fails.",
                ("kind", "at", "times", "tool"),
                {"kind": {"enum": [*MODEL_FAULTS]}, "at": _WHOLE, "times": _WHOLE, "tool": _FILLED_TEXT},
                ["kind"],
            ),
            _COLUMN,
        ),
        "ToolFault": an_object(
            "How a tool fails.",
            ("kind", "at", "times", "tool", "message", "code", "delay", "mode", "path"),
            {
                "kind": {"enum": [*TOOL_FAULTS]},
                "at": _WHOLE,
                "times": _WHOLE,
                "tool": _FILLED_TEXT,
                "message": _TEXT,
                "code": any_of(_TEXT, {"type": "integer"}),
                "delay": {"type": "number", "minimum": 0},
                "mode": {"enum": [*SCHEMA_MODES]},
                "path": _TEXT,
            },
            ["kind", "tool"],
        ),
        "Injection": an_object(
            "An instruction that stands in what the agent reads.",
            ("technique", "at", "goal", "tool", "argument", "value"),
            {
                "technique": {"enum": [*TECHNIQUES]},
                "at": _FILLED_TEXT,
                "goal": {"enum": [*GOALS]},
                "tool": _FILLED_TEXT,
                "argument": _FILLED_TEXT,
                "value": {},
            },
            ["technique", "at"],
        ),
        "Exclusions": an_object(
            "What an exploration leaves out.",
            ("without", "reason"),
            {"without": one_or_more(_FILLED_TEXT), "reason": _FILLED_TEXT},
            ["without", "reason"],
        ),
        "Criterion": any_of(
            _FILLED_TEXT,
            an_object(
                "A sentence that must be true for the whole conversation.",
                ("text", "required"),
                {"text": _FILLED_TEXT, "required": _BOOLEAN},
                ["text"],
            ),
        ),
    }


def _mock() -> Schema:
    forms = {
        "sequence": ("array", {"type": "array", "minItems": 1, "items": ref("Mock")}),
        "error": ("string", _TEXT),
        "http_response": ("object", ref("HttpResponse")),
        "exactly": ("object", {}),
    }
    if forms.keys() != options.MOCK_FORMS.keys():
        raise AssertionError(f"Mock: {sorted(forms.keys() ^ options.MOCK_FORMS.keys())}")
    about = "The tool's answer: any value, or {sequence: […]}, {error: text}, {http_response: {status: …}}."
    return {"description": about, "allOf": [only_key(word, *form) for word, form in forms.items()]}


def _option_schemas() -> dict[str, Schema]:
    tools = any_of({"type": "object", "additionalProperties": ref("Mock")}, _COLUMN)
    expected_state = any_of({"type": "object", "minProperties": 1}, _COLUMN)
    fact = any_of(_TEXT, an_object("A fact.", ("content",), {"content": _FILLED_TEXT}, ["content"]))
    table: dict[str, Schema] = {
        "profile": any_of(
            _TEXT,
            an_object(
                "Built-in personas, and traits that replace theirs.",
                ("persona", "text", "patience", *COUNTS),
                {
                    "persona": any_of(
                        {"enum": [*PERSONAS]}, {"type": "array", "items": {"enum": [*PERSONAS]}}
                    ),
                    "text": _TEXT,
                    "patience": _WHOLE,
                    **dict.fromkeys(COUNTS, _WHOLE),
                },
                [],
            ),
        ),
        "knowledge": any_of({"type": "array", "items": fact}, _COLUMN),
        "repeat": any_of(_TEXT, _ANY_OBJECT),
        "turns": any_of({"type": "array", "items": any_of(_TEXT, ref("Turn")), "minItems": 1}, _COLUMN),
        "then": {"const": "simulate"},
        "attachments": any_of({"type": "array", "items": any_of(_FILLED_TEXT, ref("File"))}, _COLUMN),
        "headers": any_of({"type": "object", "additionalProperties": _TEXT}, _COLUMN),
        "body": _OBJECT,
        "history": any_of({"type": "array", "items": ref("EarlierMessage"), "minItems": 1}, _COLUMN),
        "tools": any_of(tools, {"const": "simulate"}),
        "user_tools": tools,
        "mocks": an_object("The original form of `tools`.", ("tools",), {"tools": tools}),
        "trajectory": any_of(one_or_more(ref("Trajectory")), _COLUMN),
        "assertions": ref("Assertions"),
        "expect": any_of(one_or_more(ref("Expect")), _COLUMN),
        "state": _OBJECT,
        "final_state": expected_state,
        "final_session_state": expected_state,
        "thresholds": any_of({"type": "object", "additionalProperties": _NUMBER}, _COLUMN),
        "decides": any_of({"type": "array", "items": {"enum": [*model.DECIDERS]}}, _COLUMN),
        "criteria": any_of({"type": "array", "items": ref("Criterion")}, _COLUMN),
        "date": _TEXT,
        "session": any_of(ref("Session"), _COLUMN),
        "model_faults": any_of({"type": "array", "items": ref("ModelFault")}, _COLUMN),
        "faults": any_of({"type": "array", "items": ref("ToolFault")}, _COLUMN),
        "inject": any_of({"type": "array", "items": ref("Injection")}, _COLUMN),
        "mutate": any_of({"type": "array", "items": {"enum": list(MUTATIONS)}}, _COLUMN),
        "user": any_of(
            {"enum": list(STRATEGIES)},
            an_object(
                "An adversarial user.",
                ("attack", "objective", "turns"),
                {"attack": {"enum": list(STRATEGIES)}, "objective": _FILLED_TEXT, "turns": _WHOLE},
                ["attack"],
            ),
            _COLUMN,
        ),
        "never": any_of(
            {"type": "array", "items": any_of(_FILLED_TEXT, ref("Call"), ref("Matcher"))}, _COLUMN
        ),
        "consent": any_of({"type": "object", "additionalProperties": _FILLED_TEXT}, _COLUMN),
        "approve": any_of(_APPROVE, _COLUMN),
        "explore": any_of(_BOOLEAN, ref("Exclusions"), _COLUMN),
        "skip": any_of(_BOOLEAN, _FILLED_TEXT),
    }
    function: Any = definition.scenario
    plain = {
        "str": _TEXT,
        "int": _WHOLE,
        "bool": _BOOLEAN,
        "Sequence[str]": _TEXTS,
    }
    made = {}
    for key, annotation in inspect.get_annotations(function).items():
        kind = annotation.removesuffix(" | None")
        if key not in ("mapping", "check", "camel_case", "return"):  # a check is a function
            made[key] = table.pop(key) if key in table else plain[kind]
    assert not table, f"no option of scenario() is named {sorted(table)}"
    about = _arguments(inspect.getdoc(function) or "")
    return {
        key: {"description": about.get(key, ""), **any_of(schema, _NULL)} if key != "name" else _FILLED_TEXT
        for key, schema in made.items()
    }


def _arguments(doc: str) -> dict[str, str]:
    """Return the descriptions of the arguments in a docstring."""
    text = doc.partition("Args:\n")[2].partition("\n\n")[0]
    found = re.findall(r"^    (\w+): (.*(?:\n        .*)*)", text, re.MULTILINE)
    return {name: " ".join(words.split()) for name, words in found}


def scenarios_schema() -> Schema:
    schemas = _option_schemas()
    each = {
        "description": "Make a scenario for each row: a .csv, .tsv, .jsonl or .json file, or a list of rows.",
        **any_of(_FILLED_TEXT, {"type": "array", "items": {"type": "object"}, "minItems": 1}),
    }
    defaults = {key: schema for key, schema in schemas.items() if key != "name"}
    entry = both_spellings(
        {"type": "object", "properties": {**schemas, data_files.EACH: each}, "additionalProperties": False}
    )
    entry["anyOf"] = [{"required": ["name"]}, {"required": [data_files.EACH]}]
    about_defaults = "Options of every scenario of this file that does not give them itself."
    tops = {
        "scenarios": {"type": "array", "items": ref("Scenario"), "minItems": 1},
        "defaults": an_object(about_defaults, defaults, defaults),
    }
    top = an_object("Scenarios of Agentest", data_files.KEYS, tops, ["scenarios"])
    aims = [{"required": [key]} for key in ("goal", "turns", "user", data_files.EACH)]
    top |= {
        "if": {"not": {"required": ["defaults"]}},
        "then": {"properties": {"scenarios": {"items": {"anyOf": aims}}}},
    }
    return {"$schema": DIALECT, **top, "$defs": dict(sorted({**_definitions(), "Scenario": entry}.items()))}


GENERATORS = {"config": config_schema, "scenarios": scenarios_schema}


def text_of(name: str) -> str:
    return json.dumps(GENERATORS[name](), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for each in GENERATORS:
        (FOLDER / f"{each}.schema.json").write_text(text_of(each), encoding="utf-8")
