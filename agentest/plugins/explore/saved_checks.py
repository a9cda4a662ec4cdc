"""What a saved scenario checks: a finding's oracle in the words of scenarios.

A check fails if the finding occurs, and holds for an agent without the bug. Words that scenarios have come
first; the others are small functions in the saved file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from agentest.domain.transcript import Conversation
from agentest.mocks.changed_answers import value_at
from agentest.plugins.explore.claims import claims_of_success
from agentest.plugins.explore.fault_sweep import met_faults
from agentest.plugins.explore.invariants import MOST_EQUAL_FAILURES, MOST_ROUNDS, REPEATABLE_AFTER
from agentest.plugins.explore.model import FindingKey, Reduced
from agentest.scenarios.expectations import Expect, Saying
from agentest.scenarios.function_source import CopiedFunction
from agentest.scenarios.model import Criterion, Scenario
from agentest.scenarios.python_formatting import literal, node, split_source
from agentest.scenarios.trajectory import ExpectedCall, Trajectory
from agentest.support.lazy_dataclasses import replace

NEVER = "never"
_MISSING_VALUES = {
    "None": r"[^.!?\s] ?None\b(?! of\b)",
    "undefined": r"\bundefined\b",
    "null": r"\bnull\b(?! and void)",
    "NaN": r"\bNaN\b",
}
"""Form of a missing value in a reply → a pattern that finds it, and not the English word."""


class FindingToSave(NamedTuple):
    """A finding, and what its check may use."""

    key: FindingKey
    reduced: Reduced
    scenario: Scenario
    """The scenario to be written: reduced, and without expectations that its change makes impossible."""
    schema: Mapping[str, Any] | None
    """The JSON Schema of the arguments of the finding's tool; None if it is unknown."""

    @property
    def conversation(self) -> Conversation:
        return self.reduced.example.conversation


class Checked(NamedTuple):
    """A scenario with the check of a finding; `check` is a function to be written into the file."""

    scenario: Scenario
    check: CopiedFunction | None = None


def with_check(finding: FindingToSave) -> Checked | None:
    """Return the scenario with the check of a finding; None if no word of a scenario expresses it."""
    scenario, violation, make = finding.scenario, finding.reduced.violation, _CHECKS.get(finding.key.oracle)
    at = violation.turn_index
    turn = scenario.turns[at] if at is not None and at < len(scenario.turns) else None
    if violation.wanted is not None:
        return Checked(_with_trajectory(scenario, Trajectory("contains", expected=(violation.wanted,))))
    if make is not None and finding.key.outcome not in _PLAIN and not violation.unsaid:
        return make(finding)
    if violation.unsaid and turn is not None:
        turn = replace(turn, expect=Expect(never_says=(violation.unsaid,)))
    elif violation.banned is None:
        return Checked(scenario)  # what the scenario itself says fails
    elif finding.key.outcome in _OF_A_TURN and turn is not None:
        ban = Trajectory("contains", forbidden=(violation.banned,))
        turn = replace(turn, trajectory=(*turn.trajectory, ban))
    else:
        return Checked(_never_called(scenario, violation.banned))
    return Checked(replace(scenario, turns=(*scenario.turns[:at], turn, *scenario.turns[(at or 0) + 1 :])))


_OF_A_TURN = ("denied", "uncorrected")
"""Outcomes that are wrong in one turn only: the same call may have been right before."""
_PLAIN = ("chosen",)  # outcomes of oracles with a check that a ban expresses better


# What the invariants of every conversation found


def _no_error(finding: FindingToSave) -> Checked:
    pattern = finding.key.outcome
    if finding.key.detail != "text":
        return _checked_by(finding, "it_replies", _REPLIES)
    wanted = _MISSING_VALUES.get(pattern)
    never = Saying(wanted=re.compile(wanted) if wanted else pattern, never=True)
    return Checked(replace(finding.scenario, expect=(*finding.scenario.expect, never)))


_REPLIES = '''\
def it_replies(conversation):
    """Every message gets a reply with text."""
    assert all(reply.strip() for reply in conversation.replies), "a reply is empty"
'''


def _in_schema(finding: FindingToSave) -> Checked:
    tool, name = finding.key.tool, f"{_word(finding.key.tool)}_arguments_fit"
    if finding.schema is None:
        source = f'''\
def {name}(conversation):
    """{_plain(tool)} gets arguments that it can read."""
    for call in conversation.calls({literal(tool)}):
        assert not call.invalid_arguments, f"{{call.args}}: {{call.invalid_arguments}}"
'''
        return _checked_by(finding, name, source)
    constant = f"{_word(tool).upper()}_SCHEMA"
    schema = node(dict(finding.schema))
    written = schema if isinstance(schema, str) else split_source(schema)  # type: ignore[arg-type]
    source = f'''\
def {name}(conversation):
    """The arguments of {_plain(tool)} fit its schema."""
    for call in conversation.calls({literal(tool)}):
        problem = best_match(Draft202012Validator({constant}).iter_errors(call.args))
        assert problem is None, f"{{call.args}}: {{problem.message}}"
'''
    return _checked_by(
        finding,
        name,
        source,
        "from jsonschema import Draft202012Validator",
        "from jsonschema.exceptions import best_match",
        constant=f"{constant} = {written}",
    )


def _no_repeated_write(finding: FindingToSave) -> Checked:
    tool, name = finding.key.tool, f"{_word(finding.key.tool)}_is_not_repeated"
    kinds = {each.kind: each for each in finding.scenario.faults if each.tool == tool}
    unclear = next((each for kind, each in kinds.items() if kind in REPEATABLE_AFTER), None)
    if "applied_then_timeout" in kinds:
        return _checked_by(finding, name, _repeated_unseen(name, tool))
    calls = f"conversation.calls({literal(tool)})"
    if unclear is not None:  # calls with an answer that says nothing may be made again
        end = unclear.at + unclear.times - 1
        before = f"{calls}[: {unclear.at - 1}] + " if unclear.at > 1 else ""
        calls = f"{before}{calls}[{end}:]"
    source = f'''\
def {name}(conversation):
    """No call of {_plain(tool)} that took effect is made again with the same arguments."""
    done = []
    for call in {calls}:
        assert call.args not in done, f"{_plain(tool)} was called again with {{call.args}}"
        if not call.failed:
            done.append(call.args)
'''
    return _checked_by(finding, name, source)


def _repeated_unseen(name: str, tool: str) -> str:
    return f'''\
def {name}(conversation):
    """{_plain(tool)} worked although it timed out: it is not called again before the agent has looked."""
    done = []
    for call in conversation.tool_calls:
        if call.name == {literal(tool)}:
            assert call.args not in done, f"{_plain(tool)} was called again with {{call.args}}"
            done.append(call.args)
        else:
            done.clear()  # it may have looked what happened
'''


def _no_claim(finding: FindingToSave) -> Checked:
    tool, name = finding.key.tool, f"no_claim_that_{_word(finding.key.tool)}_worked"
    claims = any(claims_of_success(reply, tool) for reply in finding.conversation.replies)
    if not claims:  # a model judged it
        text = f"Does not say that {tool} took effect, because it failed."
        return Checked(replace(finding.scenario, criteria=(Criterion(text),)))
    unclear = "worked" if finding.key.outcome == "no call" else "worked or not calls"
    source = f'''\
def {name}(conversation):
    """As long as no call of {_plain(tool)} has succeeded, no reply says that it worked."""
    worked = False
    for turn in conversation.turns:
        calls = [call for call in turn.tool_calls if call.name == {literal(tool)}]
        worked = worked or any(not call.failed for call in calls)
        claim = "" if {unclear} else claims_of_success(turn.agent_message, {literal(tool)})
        assert not claim, f"no {_plain(tool)} has succeeded, but the reply says: {{claim}}"
'''
    return _checked_by(finding, name, source, "from agentest import claims_of_success")


def _grounded_ids(finding: FindingToSave) -> Checked | None:
    if finding.key.outcome in ("foreign", "stale", "conflict"):
        return _foreign(finding)
    tool, path = finding.key.tool, finding.key.detail
    name = f"{_word(path)}_of_{_word(tool)}_is_given"
    value, keys = "call.args", path.partition("[")[0].split(".")  # a list is read as its text
    for key in keys[:-1]:
        value += f".get({literal(key)}, {{}})"
    source = f'''\
def {name}(conversation):
    """`{_plain(path)}` of {_plain(tool)} comes from the user or from a tool."""
    known = ""
    for turn in conversation.turns:
        known += turn.user_message
        for call in turn.tool_calls:
            if call.name == {literal(tool)}:
                value = {value}.get({literal(keys[-1])})
                assert str(value or "") in known, f"nobody gave {{value!r}}"
            known += str(call.result)
        known += turn.agent_message
'''
    return _checked_by(finding, name, source)


_DOUBT = r"n't\b|\b(not|different|another|other|instead|wrong|but|however|error|sorry|unable)\b"


def _foreign(finding: FindingToSave) -> Checked | None:
    tool, conversation = finding.key.tool, finding.conversation
    for met in met_faults(finding.scenario, conversation):
        value = value_at(met.call.result, met.fault.path or finding.key.detail)
        if met.fault.kind == "schema":
            value = value_at(finding.scenario.tools.get(tool), met.fault.path)
        if met.call.name != tool or value is None:
            continue
        for call in conversation.tool_calls[met.position + 1 :]:
            for key, given in call.args.items() if isinstance(call.args, Mapping) else ():
                if given == value:
                    return Checked(_never_called(finding.scenario, ExpectedCall(call.name, {key: value})))
        name = f"{_word(str(value))}_is_not_told"
        source = f'''\
def {name}(conversation):
    """{_plain(str(value))} is not what was looked up, so it is not told as if it were right."""
    for reply in conversation.replies[{finding.reduced.violation.turn_index or 0} :]:
        doubt = re.search(
            r"{_DOUBT}", reply, re.IGNORECASE
        )
        assert {literal(str(value))} not in reply or doubt, reply
'''
        return _checked_by(finding, name, source, "import re")
    return None


def _bounded(finding: FindingToSave) -> Checked:
    scenario, tool = finding.scenario, finding.key.tool
    if finding.key.outcome == "rounds":
        limit = Trajectory("contains", max_calls=MOST_ROUNDS)
    else:
        most = MOST_EQUAL_FAILURES * max(1, len(scenario.turns))
        limit = Trajectory("contains", max_calls_per_tool={tool: most})
    return Checked(_with_trajectory(scenario, limit))


_CHECKS: Mapping[str, Callable[[FindingToSave], Checked | None]] = {
    "no_error": _no_error,
    "in_schema": _in_schema,
    "no_repeated_write": _no_repeated_write,
    "no_claim": _no_claim,
    "grounded_ids": _grounded_ids,
    "bounded": _bounded,
}
"""Oracle → the check, if neither a call nor a text that its violation names expresses it."""


def _checked_by(finding: FindingToSave, name: str, source: str, *imports: str, constant: str = "") -> Checked:
    definitions = (*([constant] if constant else ()), source.rstrip())
    return Checked(finding.scenario, CopiedFunction(name, definitions, imports))


def _plain(text: str) -> str:
    return re.sub(r"[^\w .:/()\[\]-]", "?", text.replace("{", "(").replace("}", ")"))[:_MOST_CHARS]


_MOST_CHARS = 60


def _word(text: str) -> str:
    word = re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_").lower()
    word = word[:_MOST_CHARS]
    return f"it_{word}" if not word or word[0].isdigit() else word


def _with_trajectory(scenario: Scenario, added: Trajectory) -> Scenario:
    if scenario.trajectory:
        added = replace(added, name="finding")
    named = tuple(
        replace(each, name=each.name or f"part {n}") for n, each in enumerate(scenario.trajectory, 1)
    )
    return replace(scenario, trajectory=(*named, added))


def _never_called(scenario: Scenario, *calls: ExpectedCall) -> Scenario:
    ban = Trajectory("contains", forbidden=calls, name=NEVER)
    return replace(scenario, trajectory=(*scenario.trajectory, ban))
