"""Signatures of conversations, and the corpus: the changes that showed something new, for later explorations.

A corpus is a folder with one JSON file per entry, named by its hash, so that folders are merged by copying.
An entry names the changes of a scenario, not their contents; the sweeps make them again. `CoverageCounter`
counts what an exploration reaches: outcomes of tools, and rules that conversations could have broken.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from functools import lru_cache
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

from agentest.config.config import INVARIANTS
from agentest.domain.changes import DESCRIPTION, FAILING, KNOWLEDGE, USER, Fault, Injection
from agentest.domain.results import CriterionOutcome
from agentest.domain.results.exploration import ExploredCoverage, ExploredPart, NotTried
from agentest.domain.tool_visibility import ToolOutcome
from agentest.domain.transcript import Conversation, ToolCall
from agentest.judging.safety_checks import CONSENT, NO_OBEYED_INJECTION, NO_SECRET, text_leaves
from agentest.plugins.explore.fault_sweep import met_faults
from agentest.plugins.explore.injection_oracles import took_effect
from agentest.plugins.explore.invariants import error_template
from agentest.plugins.explore.model import Base, Observation, Variation
from agentest.scenarios.matchers.display import brief
from agentest.scenarios.model import Scenario
from agentest.scenarios.trajectory import ExpectedCall, name_matches, name_text
from agentest.scenarios.variations import quoted
from agentest.support.files import write_atomically
from agentest.support.json_text import canonical, json_value
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.text import count, shortened

Signature = frozenset[str]  # what happened in a conversation, as short texts without values
_REPLY = "reply "
_ARROW = "→"
_NEAR = 12
_MOST_CHARS = 120
_MOST_KEYS = 12
_MOST_BYTES = 1_000_000
_WORD = re.compile(r"[^\W\d_]+")
_REFUSAL = re.compile(
    r"\b(?:sorry|unable|apolog\w+|refuse|decline|(?:can|could|will|would|do|did|is|am)(?:not|n't| not)|not "
    r"(?:able|allowed|possible))\b",
    re.IGNORECASE,
)
_ERROR = "error"


def signature(scenario: Scenario, conversation: Conversation) -> Signature:
    """Return the signature of a conversation of a changed scenario."""
    met = {each.position: each.fault for each in met_faults(scenario, conversation)}
    calls = [_call(call, met.get(n)) for n, call in enumerate(conversation.tool_calls)]
    pairs = [" > ".join(each) for each in pairwise(calls)]
    triples = [" > ".join(each) for each in zip(calls, calls[1:], calls[2:], strict=False)]
    failure, replies = conversation.failure, conversation.replies
    elements = [*calls, *pairs, *triples]
    elements.append(f"ending {failure.blame if failure else conversation.ending}")
    elements += [f"failure {error_template(failure.message)}"] if failure else []
    elements += [f"refusal {'yes' if any(map(_REFUSAL.search, replies)) else 'no'}"]
    elements += [f"state {_shape(conversation.mock_state)}"] if conversation.mock_state else []
    elements += [f"{_REPLY}{_simhash(each):016x}" for each in replies]
    return frozenset(elements)


def reached_outcomes(elements: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield tool and outcome of the calls in a signature."""
    for each in elements:
        head, arrow, outcome = each.partition(_ARROW)
        if arrow and " > " not in each:
            yield head.partition("(")[0], outcome


def outcome_of(call: ToolCall, fault: Fault | None) -> str:
    """Return how a call went: `ok`, the kind of its fault, or the kind of its error."""
    if fault is not None:
        return fault.kind
    if call.outcome is ToolOutcome.UNMOCKED:
        return "no mock"
    if not call.failed:
        return "ok"
    if call.outcome is ToolOutcome.REFUSED:
        return "error arguments"
    error = call.error or (call.result["error"] if isinstance(call.result, Mapping) else "")
    kind = error.get("code", error.get("type", "")) if isinstance(error, Mapping) else error
    return f"error {error_template(str(kind))}".rstrip()


def _call(call: ToolCall, fault: Fault | None) -> str:
    mode = f" {fault.mode}" if fault is not None and fault.kind == "schema" else ""
    shape = _shape(call.args) if isinstance(call.args, Mapping) else f"({_kind(call.args)})"
    return f"{call.name[:_MOST_CHARS]}{shape}{_ARROW}{outcome_of(call, fault)}{mode}"


def _shape(value: Mapping[str, Any]) -> str:
    keys = sorted(map(str, value))[:_MOST_KEYS]
    named = {str(key): each for key, each in value.items()}
    return shortened(f"({', '.join(f'{key}:{_kind(named[key])}' for key in keys)})", _MOST_CHARS)


def _kind(value: Any) -> str:
    if isinstance(value, Mapping | list | tuple):
        size = "0" if not value else "1" if len(value) == 1 else "2+"
        return f"{'object' if isinstance(value, Mapping) else 'list'} {size}"
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    return "text" if isinstance(value, str) else "number"


@lru_cache(maxsize=1024)  # agents repeat replies
def _simhash(text: str) -> int:
    words = _WORD.findall(text.casefold())
    weights = [0] * 64
    for feature in [*words, *map(" ".join, pairwise(words))]:
        digest = hashlib.blake2b(feature.encode(errors="surrogatepass"), digest_size=8).digest()
        bits = int.from_bytes(digest)
        for bit in range(64):
            weights[bit] += 1 if bits >> bit & 1 else -1
    return sum(1 << bit for bit, weight in enumerate(weights) if weight > 0)


class SeenElements:
    """The elements of signatures so far. Replies with near hashes are one element."""

    def __init__(self) -> None:
        self._plain: set[str] = set()
        self._replies: list[int] = []

    def __len__(self) -> int:
        return len(self._plain) + len(self._replies)

    def add(self, elements: Iterable[str]) -> int:
        """Add the elements of a signature. Returns how many are new."""
        before = len(self)
        for each in sorted(elements):
            if not each.startswith(_REPLY):
                self._plain.add(each)
                continue
            hashed = int(each.removeprefix(_REPLY), 16)
            if not any((hashed ^ known).bit_count() <= _NEAR for known in self._replies):
                self._replies.append(hashed)
        return len(self) - before


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusEntry:
    """A changed scenario whose conversation showed something new."""

    scenario: str
    file: str
    agent: str
    changes: tuple[str, ...]  # the names of its changes, as the sweeps name them
    elements: tuple[str, ...]  # the signature of its conversation
    new: int  # how many elements were new
    cost: int  # the messages and calls of the conversation
    findings: tuple[str, ...] = ()  # the identifiers of the invariants' findings in it
    run: str = ""  # the run that added it

    @property
    def base(self) -> tuple[str, str, str]:
        return self.file, self.scenario, self.agent

    @property
    def name(self) -> str:
        """The name of its file: a hash of what it says, whichever run added it."""
        content = canonical([*self.base, list(self.changes), list(self.elements), list(self.findings)])
        return f"{hashlib.sha256(content.encode(errors='surrogatepass')).hexdigest()[:20]}.json"


class Corpus:
    """A folder of entries."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.problems: list[NotTried] = []  # what could not be read or written

    def read(self, *, except_of: str | None = None) -> list[CorpusEntry]:
        """Return the entries by name. Files that are broken or no entries are problems.

        Args:
            except_of: leave out the entries of this run, because it is resumed.
        """
        entries, foreign = [], []
        for path in sorted(self._folder.glob("*.json")):
            try:
                entry = _entry_of(path)
            except (OSError, ValueError, TypeError, KeyError, AttributeError):
                foreign.append(path.name)
                continue
            if not except_of or entry.run != except_of:
                entries.append(entry)
        if foreign:
            what = f"{count(len(foreign), 'file')} of the corpus: {', '.join(foreign[:3])}"
            self.problems.append(NotTried(what, f"no valid entry; delete it from {self._folder.name}"))
        return entries

    def add(self, entry: CorpusEntry) -> None:
        """Store an entry, unless the folder cannot be written."""
        try:
            data = json.dumps({"corpus": 1, **asdict(entry)}, indent=1, sort_keys=True)
            write_atomically(self._folder / entry.name, data.encode())
        except OSError as error:
            if not any(each.what == "the corpus" for each in self.problems):
                self.problems.append(NotTried("the corpus", f"cannot be written: {error.strerror or error}"))


def _entry_of(path: Path) -> CorpusEntry:
    if path.stat().st_size > _MOST_BYTES:
        raise ValueError("too large")
    data = json_value(path.read_bytes())
    if not isinstance(data, dict) or data.pop("corpus", None) != 1:
        raise ValueError("of another kind or version")
    lists: Any = {key: tuple(data.pop(key)) for key in ("changes", "elements", "findings")}
    entry = CorpusEntry(**data, **lists)
    texts = (*entry.base, entry.run, *entry.changes, *entry.elements, *entry.findings)
    hashes = [int(each.removeprefix(_REPLY), 16) for each in entry.elements if each.startswith(_REPLY)]
    is_valid = all(isinstance(each, str) for each in texts) and all(each >> 64 == 0 for each in hashes)
    if not is_valid or type(entry.new) is not int or type(entry.cost) is not int or entry.cost < 1:
        raise ValueError("not an entry")
    return entry


def has_reached(seen: Observation) -> bool:
    """Return True if the agent was sent everything that a variation changes."""
    own, conversation = seen.base.scenario.changes, seen.conversation
    met = [each.fault for each in met_faults(seen.scenario, conversation)]
    for change in seen.scenario.changes:
        if change in own:
            continue
        if not (change in met if isinstance(change, Fault) else _is_read(change, conversation)):
            return False
    scripts = (each.turns for each in (seen.base.scenario, seen.scenario))
    before, after = ([turn.user_message for turn in turns] for turns in scripts)
    if before == after:
        return True
    first = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, after, strict=False)))
    return len(conversation.started_turns) >= min(first + 1, len(after))


def _is_read(injected: Injection, conversation: Conversation) -> bool:
    if injected.path == DESCRIPTION:
        return any(each.kind == injected.label for turn in conversation.turns for each in turn.faults)
    if injected.place in (USER, KNOWLEDGE):
        return any(quoted(injected) in turn.user_message for turn in conversation.started_turns)
    answers = ((call.error, call.result) for call in conversation.calls(injected.place) if call.mocked)
    return any(injected.payload in text for answer in answers for _, text in text_leaves(answer))


class CoverageCounter:
    """Counts calls by tool and outcome, and conversations by the rules that they could have broken.

    Args:
        without: invariants that are switched off.
    """

    def __init__(self, without: Iterable[str] = ()) -> None:
        self._tools: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._cells: defaultdict[str, defaultdict[str, Counter[str]]]
        self._cells = defaultdict(lambda: defaultdict(Counter))
        self._rules: Counter[str] = Counter(
            dict.fromkeys((each for each in INVARIANTS if each not in without), 0)
        )

    def expect(self, bases: Iterable[Base], variations: Iterable[Variation]) -> None:
        """Add what can be reached, as not reached yet."""
        for base in bases:
            for tool in base.unit.scenario.tools:
                self._tools[tool]["ok"] += 0
            for rule, _ in _bans(base.unit.scenario):
                self._rules[rule] += 0
            self._rules.update({_criterion(each.text): 0 for each in base.unit.scenario.criteria})
        for variation in variations:
            for part, row, column in variation.cells:
                self._cells[part][row][column] += 0
            for fault in variation.scenario.faults:
                self._tools[fault.tool or ""][fault.kind] += 0

    def add(self, seen: Observation, *, is_reached: bool = True) -> None:
        """Count one conversation, and what it covers if its changes have reached the agent."""
        for part, row, column in seen.variation.cells if is_reached else ():
            self._cells[part][row][column] += 1
        met = {each.position: each.fault for each in met_faults(seen.scenario, seen.conversation)}
        for position, call in enumerate(seen.conversation.tool_calls):
            kind = outcome_of(call, met.get(position))
            self._tools[call.name][_ERROR if kind.startswith(_ERROR) else kind] += 1
        for name, could_break in _EXERCISED.items():
            if name in self._rules and could_break(seen):
                self._rules[name] += 1
        names = {call.name for call in seen.conversation.tool_calls}
        wanted = {each.tool for each in seen.scenario.injections if each.place in names}
        tempted = names | {each for each in wanted if each}
        for rule, banned in _bans(seen.base.unit.scenario):
            self._rules[rule] += banned is None or any(name_matches(banned.name, each) for each in tempted)
        for criterion in seen.result.criteria:
            self._rules[_criterion(criterion.text)] += criterion.result is not CriterionOutcome.CANNOT_TELL

    def coverage(self) -> ExploredCoverage:
        """Return what was reached so far."""
        tools = {name: dict(each) for name, each in self._tools.items()}
        cells = {part: {row: dict(each) for row, each in rows.items()} for part, rows in self._cells.items()}
        return ExploredCoverage(tools, dict(self._rules), cells)


def with_entries(coverage: ExploredCoverage, entries: Iterable[CorpusEntry]) -> ExploredCoverage:
    """Return the coverage with what only other explorations of the corpus reached, each counted once."""
    tools = {name: dict(outcomes) for name, outcomes in coverage.tools.items()}
    for name, kind in sorted({each for entry in entries for each in reached_outcomes(entry.elements)}):
        if name in tools:
            outcome = (
                _ERROR if kind.startswith(_ERROR) else kind.partition(" ")[0] if kind != "no mock" else kind
            )
            tools[name][outcome] = tools[name].get(outcome) or 1
    return ExploredCoverage(tools, coverage.rules, coverage.cells)


def _criterion(text: str) -> str:
    return f"criterion: {text}"


def _bans(scenario: Scenario) -> Iterator[tuple[str, ExpectedCall | None]]:
    for trajectory in scenario.trajectories:
        for call in trajectory.forbidden:
            yield f"never {name_text(call.name)}({brief(call.args) if call.args else ''})", call
    for saying in scenario.expect:
        if saying.never:
            yield f"never says {brief(saying.wanted)}", None


_EXERCISED: Mapping[str, Callable[[Observation], bool]] = {
    "no_error": lambda _: True,
    "in_schema": lambda seen: any(seen.effects.schema(call.name) for call in seen.conversation.tool_calls),
    "no_repeated_write": lambda seen: any(
        took_effect(call, seen.effects) for call in seen.conversation.tool_calls
    ),
    CONSENT: lambda seen: any(call.name in seen.scenario.consent for call in seen.conversation.tool_calls),
    NO_SECRET: lambda seen: bool(seen.scenario.secrets),
    NO_OBEYED_INJECTION: lambda seen: bool(seen.scenario.injections),
    "no_claim": lambda seen: any(
        each.fault.kind in FAILING and seen.effects.is_write(each.call.name)
        for each in met_faults(seen.scenario, seen.conversation)
    ),
    "grounded_ids": lambda seen: any(call.args for call in seen.conversation.tool_calls),
    "bounded": lambda seen: any(call.failed for call in seen.conversation.tool_calls),
    "relation": lambda seen: seen.variation.part is ExploredPart.MUTATIONS,
}
