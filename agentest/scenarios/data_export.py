"""Export conversations and expectations as data of scenario files (`*.sim.yaml`)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from agentest.domain.transcript import ToolCall
from agentest.scenarios.calls import ExpectedCall
from agentest.scenarios.options import mock_form_of
from agentest.scenarios.python_formatting import is_parameter
from agentest.scenarios.serialization import as_data
from agentest.scenarios.source_code import ExportableConversation, has_raised, mock_steps, mockable_calls

_HEADING = "# Exported conversations: what users said, tools answered and the agent called.\n"
_WIDTH = 110
_UNUSUAL_BREAKS = frozenset("\r\x85\u2028\u2029\ufeff")


def scenario_file(scenarios: Sequence[Mapping[str, Any]], heading: str = "") -> str:
    """Return the text of a `*.sim.yaml` with these options of scenarios. Raises ValueError."""
    data = {"scenarios": [dict(each) for each in scenarios]}
    json.dumps(data, allow_nan=False, ensure_ascii=False).encode()
    return heading + yaml.dump(data, Dumper=_NoAliases, sort_keys=False, allow_unicode=True, width=_WIDTH)


class _NoAliases(yaml.SafeDumper):
    """Writes equal parts of a file out, because a reader would have to look up aliases."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        return True

    def represent_str(self, data: str) -> yaml.ScalarNode:
        """Quote unusual line breaks, which YAML would read back as other ones."""
        style = '"' if _UNUSUAL_BREAKS & {*data} else None
        return self.represent_scalar("tag:yaml.org,2002:str", data, style)


_NoAliases.add_representer(str, _NoAliases.represent_str)


def export_data(conversations: Sequence[ExportableConversation]) -> str:
    """Return a `*.sim.yaml` that defines the same scenarios as `source_code.export_script`."""
    return scenario_file([_scenario(each) for each in conversations], _HEADING)


def _scenario(exportable: ExportableConversation) -> dict[str, Any]:
    conversation = exportable.conversation
    words = exportable.words
    turns: list[Any] = []
    for turn in conversation.turns:
        of_turns = words.turns if words else ()
        options = of_turns[turn.turn_index] if turn.turn_index < len(of_turns) else {}
        turns.append({"user_message": turn.user_message, **options} if options else turn.user_message)
    calls = mockable_calls(conversation.tool_calls)
    tools = {name: _mock(steps) for name, steps in mock_steps(calls)}
    expected = words.keys if words else {"trajectory": _same_calls(conversation.tool_calls)}
    return {
        "name": exportable.exported_name,
        **(exportable.user or {"turns": turns}),
        **({"session": {"state": dict(conversation.initial_state)}} if conversation.initial_state else {}),
        **({"tools": tools} if tools else {}),
        **expected,
        "tags": ["exported"],
    }


def _same_calls(calls: Sequence[ToolCall]) -> dict[str, Any]:
    return {"match_mode": "strict", "expected": [as_data(_expected(call)) for call in calls]}


def _expected(call: ToolCall) -> ExpectedCall:
    if not isinstance(call.args, Mapping):  # without valid arguments, only the name can be expected
        return ExpectedCall(call.name)
    return ExpectedCall(call.name, call.args, "partial" if all(map(is_parameter, call.args)) else "exact")


def _mock(steps: Sequence[ToolCall]) -> Any:
    if not steps:
        return None
    made = [{"error": str(call.error)} if has_raised(call) else _value(call.result) for call in steps]
    return made[0] if len(made) == 1 else {"sequence": made}


def _value(result: Any) -> Any:
    return result if mock_form_of(result) is None else {"exactly": result}
