"""Write results.json: the whole run as one document, piece by piece."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from agentest.domain.results import RunResult, ScenarioResult
from agentest.store.codec import CODECS
from agentest.store.conversations import conversation_json, with_vacuous
from agentest.store.run_results import (
    severe_failures,
    silent_agents,
    stored_head,
    stored_scenario,
    with_severity,
)
from agentest.store.shapes import (
    ComparedScenario,
    StoredComparison,
    StoredConversation,
    StoredEntry,
    StoredRun,
)
from agentest.support.json_text import encoded, well_formed

T = TypeVar("T")


Conversations = Callable[[ScenarioResult], Iterable[bytes]]
"""Returns a scenario's conversations in order, each as JSON."""


def conversations_in_memory(scenario: ScenarioResult) -> Iterator[bytes]:
    """Yield the conversations in the scenario's result."""
    return (
        encoded(conversation_json(result, scenario.case, scenario.thresholds))
        for result in scenario.conversations
    )


def document(result: RunResult, conversations: Conversations) -> Iterator[bytes]:
    """Yield the document piece by piece, because a large run does not fit in memory.

    Each scenario and each conversation starts on a line of its own.
    """
    conversations = completed_by(result, conversations)
    head = json.dumps(CODECS.write(_without_scenarios(result)), ensure_ascii=False, indent=2, allow_nan=False)
    yield well_formed(head).encode().removesuffix(b"]\n}")
    if result.comparison:
        groups = by_name(result.scenarios, lambda scenario: scenario.name)
        yield from _separated(_compared(name, group, conversations) for name, group in groups.items())
    else:
        yield from _separated(_streamed(scenario, conversations) for scenario in result.scenarios)
    yield b"\n  ]\n}\n"


def completed_by(result: RunResult, conversations: Conversations) -> Conversations:
    """Add facts to the conversations that are known only at the end of their scenario or of the run."""
    silent = silent_agents(result)

    def completed(scenario: ScenarioResult) -> Iterable[bytes]:
        pieces = conversations(scenario)
        severe, unknown = severe_failures(scenario.errors), scenario.severity_unknown
        if severe or unknown:
            pieces = (encoded(with_severity(json.loads(each), severe, unknown=unknown)) for each in pieces)
        return map(_with_vacuous, pieces) if scenario.agent in silent else pieces

    return completed


def _with_vacuous(piece: bytes) -> bytes:
    conversation = CODECS.read(StoredConversation, json.loads(piece))
    return encoded(CODECS.write(with_vacuous(conversation)))


def _without_scenarios(result: RunResult) -> StoredRun | StoredComparison:
    head = stored_head(result)
    return StoredComparison(head=head) if result.comparison else StoredRun(head=head)


def _compared(
    name: str, scenarios: Sequence[ScenarioResult], conversations: Conversations
) -> Iterator[bytes]:
    yield _open_list(ComparedScenario(name=name))
    yield from _separated(_streamed(scenario, conversations) for scenario in scenarios)
    yield b"]}"


def _streamed(scenario: ScenarioResult, conversations: Conversations) -> Iterator[bytes]:
    yield _open_list(StoredEntry(scenario=stored_scenario(scenario)))
    yield from _separated((piece,) for piece in conversations(scenario))
    yield b"]}"


def _open_list(value: StoredEntry | ComparedScenario) -> bytes:
    """Return a value up to its last field, an empty list, so that the items can follow."""
    return encoded(CODECS.write(value)).removesuffix(b"]}")


def _separated(items: Iterable[Iterable[bytes]]) -> Iterator[bytes]:
    """Yield the items, each on a line of its own."""
    for n, item in enumerate(items):
        yield b",\n" if n else b"\n"
        yield from item


def by_name(scenarios: Iterable[T], name_of: Callable[[T], str]) -> dict[str, list[T]]:
    """Group scenarios by name, in their original order."""
    groups: dict[str, list[T]] = {}
    for scenario in scenarios:
        groups.setdefault(name_of(scenario), []).append(scenario)
    return groups
