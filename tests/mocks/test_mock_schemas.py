"""Tool specs that agents get for mocks: names, descriptions and schemas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import jsonschema
import pytest

from agentest import scenario, sequence
from agentest.domain.messages import ToolSpec
from agentest.mocks.binding import ANY_ARGUMENTS, tool_specs


class Own:
    """A type without a JSON Schema."""


def book(service: str, day: Literal["mon", "tue"], count: int = 2, note: str | None = None) -> dict[str, Any]:
    """Books a service.

    On a day.
    """
    return {}


def of_own(thing: Own) -> None:
    return None


def raw(args: dict[str, Any], ctx: Any) -> None:
    return None


def odd(schema: str, ctx: Any, limit: Own = Own()) -> None:  # noqa: B008
    return None


def specs(**tools: Any) -> tuple[ToolSpec, ...]:
    return tool_specs(scenario("s", goal="g", tools=tools).tools)


@pytest.mark.parametrize("mock", [book, sequence({"error": "busy"}, book)], ids=["function", "sequence"])
def test_the_spec_of_a_function(mock: Callable[..., Any]) -> None:
    """Names, types and defaults become the schema, the docstring the description."""
    (spec,) = specs(book=mock)
    assert (spec.name, spec.description) == ("book", "Books a service.\n\nOn a day.")
    assert spec.parameters == {
        "type": "object",
        "properties": {
            "service": {"type": "string"},
            "day": {"type": "string", "enum": ["mon", "tue"]},
            "count": {"type": "integer", "default": 2},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
        },
        "required": ["service", "day"],
        "additionalProperties": False,
    }
    jsonschema.Draft202012Validator.check_schema(spec.parameters)


@pytest.mark.parametrize(
    "mock",
    [{"slots": []}, sequence(1, 2), raw, lambda: 1, lambda _args: 1, of_own, odd],
    ids=["value", "sequence", "raw", "none", "by_position", "own_type", "own_default"],
)
def test_mocks_without_known_arguments_accept_any(mock: Any) -> None:
    assert [spec.parameters for spec in specs(tool=mock)] == [ANY_ARGUMENTS]


def test_given_specs_take_precedence() -> None:
    """A given spec replaces the one derived from the mock, in the order of the mocks."""
    own = ToolSpec(name="book", description="Mine.", parameters={"type": "object"})
    made = scenario("s", goal="g", tools={"a": 1, "book": book}).tools
    assert [spec.description for spec in tool_specs(made, {"book": own, "other": own})] == ["", "Mine."]


def test_scenarios_share_the_signature_of_a_function() -> None:
    """A function's signature is read once for all scenarios; another function has its own."""

    def other(service: str) -> None:
        return None

    models = [scenario(f"s{n}", goal="g", tools={"book": book}).tools["book"].model for n in range(2)]
    assert models[0] is models[1] is not None
    assert scenario("s", goal="g", tools={"book": other}).tools["book"].model is not models[0]
