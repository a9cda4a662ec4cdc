"""JMESPath expressions that find values in JSON with an unknown structure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agentest.support.templates import Template, Values, as_text
from agentest.support.text import did_you_mean

if TYPE_CHECKING:
    from jmespath.parser import ParsedResult

_CONDITIONS = ("comparator", "and_expression", "or_expression", "not_expression")
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TEXT_OR_PLACEHOLDER = re.compile(r"'((?:[^'\\]|\\.)*)'|\{\{\s*[\w.-]+\s*\}\}")
_TEXT_IN_DOUBLE_QUOTES = re.compile(r'[=!]=\s*("[^"]*")|("[^"]*")\s*[=!]=')


class JsonPath:
    """A compiled JMESPath expression. Equal expressions are compiled once."""

    def __init__(self, text: str) -> None:
        """Raises ValueError with the problem and its position in the expression."""
        self.text = text
        self._compiled = _compiled(text)
        self._is_condition = self._compiled.parsed["type"] in _CONDITIONS

    @property
    def parsed(self) -> Mapping[str, Any]:
        """The syntax tree."""
        tree: Mapping[str, Any] = self._compiled.parsed
        return tree

    @property
    def is_all(self) -> bool:
        """True for `@`, the whole value."""
        return bool(self._compiled.parsed["type"] == "current")

    def find(self, value: Any) -> Any:
        """Return the value that the expression finds; None if there is none or a condition is false.

        A `false` in the value is found. Functions return nothing for arguments that they do not accept.
        """
        from jmespath.exceptions import JMESPathError

        try:
            result = self._compiled.search(value)
        except (JMESPathError, ArithmeticError, TypeError, ValueError, RecursionError):
            return None
        return None if result is False and self._is_condition else result

    def holds(self, value: Any) -> bool:
        """Return True if the found value is neither missing nor false, zero or empty."""
        return bool(self.find(value))

    def __repr__(self) -> str:
        return f"JsonPath({self.text!r})"


class PathTemplate:
    """A JMESPath expression with placeholders: `status == 'done' && id == {{job}}`.

    A placeholder becomes a literal with the type of its value, and within single quotes a part of that text.
    """

    def __init__(self, text: str) -> None:
        """Raises ValueError with the problem and its position in the expression."""
        self.text = text
        self.names = Template(text).names
        self._path = self.filled(dict.fromkeys(self.names))

    def filled(self, values: Values) -> JsonPath:
        """Return the expression with these values. `values` has to have every name."""
        if not self.names:
            return JsonPath(self.text)

        def literal(match: re.Match[str]) -> str:
            is_bare = match[1] is None
            value = Template(match[0] if is_bare else match[1].replace("\\'", "'")).filled(values)
            if not is_bare:
                value = as_text("" if value is None else value)
            return "`" + json.dumps(value).replace("`", "\\`") + "`"

        return JsonPath(_TEXT_OR_PLACEHOLDER.sub(literal, self.text))

    @property
    def fields(self) -> frozenset[str]:
        """The keys that the expression looks up in the value itself."""
        return frozenset(_first_fields(self._path.parsed))


_CHAINS = ("subexpression", "index_expression", "projection", "value_projection", "filter_projection", "pipe")
"""Kinds of nodes whose first child is looked up in the value itself, and the others in its result."""


def _first_fields(node: Mapping[str, Any]) -> Iterator[str]:
    if node["type"] == "field":
        yield node["value"]
    children = node.get("children", ())
    for child in children[:1] if node["type"] in (*_CHAINS, "flatten") else children:
        if isinstance(child, Mapping):
            yield from _first_fields(child)


def check_path(text: str) -> str:
    """Return the expression unchanged. Raises ValueError if it is not JMESPath."""
    JsonPath(text)
    return text


def _compiled(text: str) -> ParsedResult:
    import jmespath  # only for users of such paths
    from jmespath.exceptions import EmptyExpressionError, JMESPathError

    try:
        compiled = jmespath.compile(text)
    except EmptyExpressionError:
        raise ValueError("is empty; write a JMESPath expression, like `data.reply`") from None
    except JMESPathError as error:
        raise ValueError(f"is {text!r}, which is not JMESPath: {_problem(text, error)}") from None
    except RecursionError:
        raise ValueError("is nested too deeply for a JMESPath expression") from None
    _check_functions(compiled.parsed)
    if match := _TEXT_IN_DOUBLE_QUOTES.search(re.sub(r"'(?:[^'\\]|\\.)*'|`(?:[^`\\]|\\.)*`", "''", text)):
        quoted = match[1] or match[2]
        raise ValueError(f"compares with the key {quoted}; a text stands in single quotes: '{quoted[1:-1]}'")
    return compiled


def _problem(text: str, error: ValueError) -> str:
    at = getattr(error, "lex_position", 0) or 0
    hint = '; a key with a hyphen stands in double quotes: "session-id"' if text[at : at + 1] == "-" else ""
    if text.startswith("$"):
        hint = "; it begins with a key, without `$`"
    if at >= len(text):
        return f"it breaks off at its end{hint}"
    what = "an unclosed quote" if "nclosed" in str(error) else f"{text[at]!r} is not expected"
    return f"{what} at character {at + 1}{hint}"


def _nodes(node: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(node, Mapping):
        yield node
        for child in node.get("children", ()):
            yield from _nodes(child)


def _check_functions(parsed: Any) -> None:
    from jmespath.functions import Functions

    known = Functions.FUNCTION_TABLE
    for node in _nodes(parsed):
        if node["type"] != "function_expression":
            continue
        name, count = node["value"], len(node["children"])
        if name not in known:
            raise ValueError(f"has the function {name}(), which JMESPath lacks; {did_you_mean(name, known)}")
        signature = known[name]["signature"]
        is_variadic = bool(signature and signature[-1].get("variadic"))
        if count < len(signature) or (count > len(signature) and not is_variadic):
            raise ValueError(f"gives {name}() {count} arguments, and it takes {len(signature)}")


def path_to(parts: Sequence[str | int]) -> str:
    """Convert keys and indices to JMESPath: `data.messages[0]."my-key"`."""
    text = ""
    for part in parts:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            escaped = part.replace("\\", "\\\\").replace('"', '\\"')
            text += f".{part}" if _PLAIN_NAME.fullmatch(part) else f'."{escaped}"'
    return text.removeprefix(".") or "@"
