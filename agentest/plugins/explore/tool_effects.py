"""What the tools of a unit do: which of them write, which only read, and what their arguments look like.

Declarations come first: `explore.writes`, `reads` and `expected_writes` of the scenario, `readOnlyHint` of
MCP tools, and the methods of HTTP operations. Otherwise the verb of the name decides, which is a guess.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from agentest.config.config import ExploreSettings
from agentest.domain.tool_verbs import verb_effect
from agentest.runner.known_tools import KnownTool, tools_of_unit
from agentest.runner.plan import Unit
from agentest.scenarios.trajectory import ToolName, Trajectory, is_one_tool, name_matches, names_in
from agentest.support.patterns import PatternTimeout

_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
_PARTY = re.compile(r"(?:^|_)(?:to|recipients?|cc|bcc|payee|beneficiary|destination|webhook|url)$")


class ToolEffects:
    """The effects of the tools of one unit."""

    def __init__(
        self,
        tools: Iterable[KnownTool],
        trajectories: Iterable[Trajectory] = (),
        settings: ExploreSettings | None = None,
    ) -> None:
        self._settings = settings or ExploreSettings()
        self._validators: dict[str, Any] = {}
        self._tools = {tool.name: tool for tool in tools}
        declared = list(trajectories)
        self._reads: list[ToolName] = [name for each in declared for name in each.reads]
        self._writes: list[ToolName] = [
            name
            for each in declared
            if each.writes
            for step in each.expected or ()
            for name in names_in(step)
        ]

    def is_write(self, name: str) -> bool:
        """Return True if a tool is declared, or looks, as if it changes something."""
        declared = self._declared(name)
        return declared == "write" if declared else verb_effect(name) == "write"

    def schema(self, name: str) -> Mapping[str, Any] | None:
        """Return the JSON Schema of a tool's arguments; None if it is unknown."""
        return self._tools[name].parameters if name in self._tools else None

    def argument_problem(self, name: str, args: Mapping[str, Any]) -> str:
        """Return why arguments do not fit the tool's schema; "" if they fit, or if that is unknown."""
        if name not in self._validators:
            self._validators[name] = _validator_of(self.schema(name))
        validator = self._validators[name]
        try:
            problem = None if validator is None else next(iter(validator.iter_errors(dict(args))), None)
        except Exception:  # noqa: BLE001 - a schema that cannot be used decides nothing, and is reported
            return ""
        return str(problem.message) if problem else ""

    def unusable_schemas(self) -> tuple[str, ...]:
        """Return the tools whose schema is not valid, so that no call can be found to break it."""
        return tuple(name for name, tool in self._tools.items() if not _is_usable(tool.parameters or {}))

    def party_argument(self, name: str) -> str | None:
        """Return the argument that names who receives what a tool sends; None if it has none."""
        if name in self._settings.parties:
            return self._settings.parties[name]
        properties = (self.schema(name) or {}).get("properties")
        arguments = properties if isinstance(properties, Mapping) else ()
        return next((each for each in arguments if _PARTY.search(str(each).lower())), None)

    def guessed(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the names whose effect is a guess, in order."""
        return tuple(name for name in dict.fromkeys(names) if not self._declared(name))

    def _declared(self, name: str) -> str:
        if any(_matches(each, name) for each in self._settings.writes):
            return "write"
        if any(_matches(each, name) for each in self._reads):
            return "read"
        if any(is_one_tool(each) and each == name for each in self._writes):
            return "write"
        known = self._tools.get(name)
        if known is not None and known.read_only is not None:
            return "read" if known.read_only else "write"
        method, _, path = name.partition(" ")
        if method.isupper() and path.startswith("/"):
            return "read" if method in _SAFE_METHODS else "write"
        return ""


def effects(unit: Unit, settings: ExploreSettings | None = None) -> ToolEffects:
    """Return what the tools of a unit do."""
    tools = tools_of_unit(unit.traits.tools, unit.scenario.tools)
    return ToolEffects(tools, unit.scenario.trajectories, settings)


def _is_usable(schema: Mapping[str, Any]) -> bool:
    from agentest.support.json_schema import check_references, draft_of

    try:
        draft_of(schema).check_schema(schema)
        check_references(schema)
    except Exception:  # noqa: BLE001 - jsonschema raises many kinds for an invalid schema
        return False
    return True


def _validator_of(schema: Mapping[str, Any] | None) -> Any:
    if not schema or not schema.keys() & {"properties", "required", "additionalProperties"}:
        return None
    from agentest.support.json_schema import schema_validator

    try:
        return schema_validator(schema, lambda pattern, text: re.search(pattern, text) is not None)
    except Exception:  # noqa: BLE001 - a schema that cannot be used decides nothing
        return None


def _matches(wanted: ToolName, name: str) -> bool:
    try:
        return name_matches(wanted, name)
    except PatternTimeout:
        return False
