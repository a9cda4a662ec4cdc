"""Scenarios for the rules and the tools of an agent, before anybody has written one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from datetime import date, timedelta
from fractions import Fraction
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from agentest.domain.results import RunResult, Status
from agentest.domain.verdict import conversation_passed
from agentest.mocks.binding import BoundFunction, Mock, steps_of
from agentest.plugins.authoring.policies import Edge, Policy
from agentest.plugins.authoring.tool_matrix import (
    CHOICE,
    LEAST,
    MISSING,
    MOST,
    PLAIN,
    STYLES,
    MatrixRow,
    ToolGoal,
    best_tool,
    example,
    matrix,
    stated,
    stems,
    words_of,
)
from agentest.scenarios.calls import ExpectedCall
from agentest.scenarios.function_source import copy_function
from agentest.scenarios.matchers.numbers import number
from agentest.scenarios.model import Criterion, Scenario, ScriptedTurn
from agentest.scenarios.personas import persona
from agentest.scenarios.python_formatting import SourceExpression
from agentest.scenarios.source_code import scenarios_source
from agentest.scenarios.trajectory import Trajectory
from agentest.scenarios.variations import base_mocks, relaxed
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.text import shortened

SAME = 0.8
"""Scenarios that share this part of their words, and their numbers, test the same."""
_COMMENT_CHARS = 100
_ABOUT = '"""Written by `agentest generate`: read each scenario before you rely on it."""'
GENERATED = "generated"
"""The tag of generated scenarios."""
_AGREES, _INSISTS = "Yes, please go ahead.", "Please make an exception and do it anyway."
_NAME_CHARS = 90
_MOST_GOALS, _MOST_ARGUMENTS, _MOST_TURNS, _MOST_NUMBERS = 60, 6, 20, 4
_MONEY = ("$", "€", "£")
_AMOUNTS = stems("amount price total sum cost value budget refund payment")
_COUNTS = stems("quantity qty count number amount")
_INTEGER = re.compile(r"(?<![\w.,:-])\d{1,6}\b(?![.,:]\d)")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_DAYS = {"day": 1, "week": 7, "month": 30, "year": 365}
_BAN_WORDS = stems(
    "never do don not must may cannot allowed permitted forbidden under no circumstances any assistant"
)


class Seed(NamedTuple):
    """Messages that are known to lead to a call of a tool."""

    messages: tuple[str, ...]
    args: Mapping[str, Any]
    tools: Mapping[str, Mock]


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """What is known about an agent."""

    goals: Sequence[ToolGoal] = ()
    policies: Sequence[Policy] = ()
    seeds: Mapping[str, Seed] = field(default_factory=dict)
    mocks: Mapping[str, Mock] = field(default_factory=dict)
    existing: Sequence[Scenario] = ()
    fingerprints: Sequence[Fingerprint] = ()
    """Of the existing scenarios."""
    answers: Mapping[str, Any] = field(default_factory=dict)
    """Tool → its last recorded result."""
    failed: Sequence[Scenario] = ()
    """Scripts that failed, of which variants are wanted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A scenario to be written."""

    name: str
    group: str
    """Cases of a group show together whether the script leads to the tool."""
    tool: str
    origin: str
    """Where it comes from, for a comment."""
    tools: Mapping[str, Mock]
    turns: tuple[str, ...] = ()
    expected: tuple[ExpectedCall, ...] = ()
    forbidden: tuple[ExpectedCall, ...] = ()
    asks_first: bool = False
    """True if the tool must not be called in the first turn."""
    criterion: str = ""
    must_say: tuple[str, ...] = ()
    """Texts, one of which a goal that a model words must contain."""
    style: str = ""
    goal: str = ""
    """In a model's words; "": the case is a script."""
    knowledge: tuple[str, ...] = ()
    outcome: str = ""
    limit: tuple[Policy, Edge] | None = None
    """The value at a limit that users, and results of tools, state."""
    like: Scenario | None = None
    """The scenario to write, for a variant of one that failed."""

    @property
    def is_edge(self) -> bool:
        """True if it belongs to the edges of a limit, which prove something only together."""
        return self.group.startswith("limit ")

    @property
    def scenario(self) -> Scenario:
        """The scenario that is written; a script unless a model has worded the goal."""
        if self.like:
            return replace(self.like, name=self.name, tools=self.tools, tags=(GENERATED,))
        calls = Trajectory("contains", self.expected or None, self.forbidden)
        first = (Trajectory("contains", forbidden=(ExpectedCall(self.tool),)),) if self.asks_first else ()
        turns = [ScriptedTurn(text, () if at else first) for at, text in enumerate(self.turns)]
        return Scenario(
            name=self.name,
            file="",
            line=0,
            profile=persona(self.style).text if self.goal and self.style else "",
            goal=self.goal,
            knowledge=self.knowledge,
            turns=() if self.goal else tuple(turns),
            tools=self.tools,
            trajectory=(calls,) if self.has_check else (),
            expected_outcome=self.outcome,
            criteria=(Criterion(self.criterion, required=bool(self.goal)),),
            tags=(GENERATED,),
        )

    def is_contradicted_by(self, result: Any) -> bool:
        """Return True if a tool's result has another value than the one at the limit."""
        return self.limit is not None and adjusted(result, *self.limit, as_source=False) != result

    @property
    def has_check(self) -> bool:
        """True if the scenario can be decided without a model."""
        return bool(self.expected or self.forbidden or self.like)


def gather_seeds(scenarios: Iterable[Scenario], runs: Iterable[RunResult]) -> dict[str, Seed]:
    """Return the shortest messages that led, or are expected to lead, to a successful call of each tool."""
    learned = [each for each in scenarios if GENERATED not in each.tags]
    known = {each.name: each for each in sorted(learned, key=has_failing_mock)}
    seeds: dict[str, Seed] = {}

    best: dict[str, tuple[bool, int]] = {}
    for result in (each for run in runs for each in run.scenarios if GENERATED not in each.tags):
        for each in (each for each in result.conversations if conversation_passed(each)):
            messages = tuple(turn.user_message for turn in each.conversation.turns)
            for call in each.conversation.tool_calls:
                rank = (not call.result, call.turn_index)
                is_usable = call.name.strip() and not call.failed and isinstance(call.args, Mapping)
                if is_usable and rank < best.get(call.name, (True, _MOST_TURNS)):
                    best[call.name] = rank
                    tools = base_mocks(known[result.name]) if result.name in known else {}
                    seeds[call.name] = Seed(messages[: call.turn_index + 1], call.args, tools)
    for scenario in known.values():
        for at, turn in enumerate(scenario.turns):
            messages = tuple(each.user_message for each in scenario.turns[: at + 1])
            for tool in {name for each in turn.trajectory for name in each.named_tools}:
                seeds.setdefault(tool, Seed(messages, {}, base_mocks(scenario)))
        forbidden = {
            step.name for each in scenario.trajectory for step in each.forbidden or () if _named(step)
        }
        for tool in {name for each in scenario.trajectory for name in each.named_tools} - forbidden:
            if scenario.turns:
                everything = tuple(each.user_message for each in scenario.turns)
                seeds.setdefault(tool, Seed(everything, {}, base_mocks(scenario)))
    return seeds


def has_failing_mock(scenario: Scenario) -> bool:
    """Return True if a tool of a scenario fails on purpose."""
    steps = (step for mock in base_mocks(scenario).values() for step in steps_of(mock))
    return any(isinstance(step, BaseException | type) for step in steps)


def _named(step: object) -> bool:
    return isinstance(getattr(step, "name", None), str)


def recorded_answers(runs: Iterable[RunResult]) -> tuple[dict[str, Any], dict[str, Mapping[str, Any]]]:
    """Return the last good result of each recorded tool, and the arguments of that call."""
    answers: dict[str, Any] = {}
    args: dict[str, Mapping[str, Any]] = {}
    for result in (each for run in runs for each in run.scenarios):
        for call in (call for each in result.conversations for call in each.conversation.tool_calls):
            if call.name.strip() and not call.failed and isinstance(call.args, Mapping):
                answers[call.name], args[call.name] = call.result, call.args
    return answers, args


def cases_of(material: Material, *, tools: bool, seed: int) -> tuple[list[Case], list[Policy]]:
    """Return the cases for the rules, then for the tools, and the rules that no script can decide."""
    cases = list(neighbours(material.failed))
    undecided: list[Policy] = []
    banned: set[str] = set()
    for policy in sorted(material.policies, key=lambda each: each.kind != "ban"):
        made = list(
            _cases_of_policy(policy, material, [each for each in material.goals if each.name not in banned])
        )
        banned |= {each.tool for each in made if policy.kind == "ban" and each.forbidden}
        cases += made
        undecided += [] if any(each.has_check for each in made) else [policy]
    if tools:
        goals = [each for each in material.goals if each.name not in banned]
        cases += [_case_of_row(row, material) for row in matrix(goals[:_MOST_GOALS], seed)]
    return _with_unique_names(cases), undecided


def failed_scripts(scenarios: Iterable[Scenario], runs: Iterable[RunResult]) -> list[Scenario]:
    """Return the scripts that failed in the runs, without generated ones."""
    failed = {each.name for run in runs for each in run.with_status(Status.FAILED)}
    return [each for each in scenarios if each.turns and GENERATED not in each.tags and each.name in failed]


def neighbours(scripts: Iterable[Scenario]) -> Iterator[Case]:
    """Yield variants of scripts: in other words, with other numbers, in another order."""
    for base in scripts:
        for about, texts in _variants([turn.user_message for turn in base.turns]):
            like = relaxed(base) if " instead of " in about else base  # its calls have other arguments
            turns = zip(like.turns, texts, strict=True)
            yield Case(
                name=f"{base.name}: {about}",
                group=f"failure {base.name}",
                tool="",
                origin=f"failed scenario {base.name}: {about}",
                tools=base.tools,
                like=replace(like, turns=tuple(replace(turn, user_message=text) for turn, text in turns)),
            )


def _variants(texts: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    for style in ("polite", "impatient", "verbose"):
        yield f"in other words ({style})", [_in_style(texts[0], style), *texts[1:]]
    numbers = dict.fromkeys(each for text in texts for each in _INTEGER.findall(text))
    for written in list(numbers)[:_MOST_NUMBERS]:
        for other in (int(written) - 1, int(written) + 1):
            if other >= 0:
                number_there = re.compile(rf"(?<![\w.,:-]){written}\b(?![.,:]\d)")
                yield f"{other} instead of {written}", [number_there.sub(str(other), text) for text in texts]
    if len(texts) > 1:
        yield "in the opposite order", list(reversed(texts))


def choose(cases: Sequence[Case], most: int) -> list[Case]:
    """Return the first cases, at most so many, without tearing the edges of a limit apart if possible."""
    picked: list[Case] = []
    for case in cases:
        group = [each for each in cases if each.group == case.group] if case.is_edge else [case]
        if group[0] is case and len(picked) + len(group) <= most:
            picked += group
    return picked or list(cases[-most:])


def _cases_of_policy(policy: Policy, material: Material, goals: Sequence[ToolGoal]) -> Iterator[Case]:
    words, bonus = stems(policy.quote), None
    if policy.kind == "limit":
        words -= stems(policy.unit)
        bonus = partial(_fits_limit, policy)
    goal = best_tool(words, goals, bonus)
    base = Case(
        name=shortened(f"keeps to: {policy.quote}", _NAME_CHARS),
        group=f"{policy.kind} {policy.source} {policy.unit} {policy.edges[0].value if policy.edges else ''}",
        tool=goal.name if goal else "",
        origin=f'{policy.source}: "{" ".join(policy.quote.split())}"',
        tools=mocks_for(material, goal),
        criterion=f'The assistant keeps to its rule "{policy.quote.rstrip(".")}"',
    )
    if policy.kind == "limit":
        yield from (_case_of_edge(policy, edge, goal, material, base) for edge in policy.edges)
        return
    base = replace(base, criterion=f"{base.criterion}.")
    asked = ""
    if goal and policy.kind == "ask":
        wanted = stems(policy.quote) - goal.words
        asked = next((name for name in goal.properties if stems(name) & wanted), "")
    if goal and asked:
        yield _asking(goal, asked, replace(base, name=f"{_words(goal)} only after asking for {asked}"))
    elif goal and (policy.kind == "confirm" or (policy.kind == "ban" and _is_plain_ban(policy.quote, goal))):
        seed = material.seeds.get(goal.name)
        request = seed.messages[0] if seed and len(seed.messages) == 1 else _request(goal, goal.arguments)
        call = (ExpectedCall(goal.name),)
        if policy.kind == "ban":
            yield replace(base, name=f"never {_words(goal)}", turns=(request, _INSISTS), forbidden=call)
        else:
            turns = (request, "Yes, I confirm. Please go ahead.")
            name = f"{_words(goal)} only after a yes"
            yield replace(base, name=name, turns=turns, expected=call, asks_first=True)
    else:
        yield base


def _case_of_edge(policy: Policy, edge: Edge, goal: ToolGoal | None, material: Material, base: Case) -> Case:
    at = f"{edge.value} {policy.tail}".rstrip()
    mocks, value = mocks_for(material, goal, policy, edge), plain_number(edge.number)
    made = replace(
        base,
        name=f"{_words(goal) if goal else 'rule'} at {at}, {'allowed' if edge.is_allowed else 'not allowed'}",
        criterion=f"{base.criterion}, which {'allows' if edge.is_allowed else 'refuses'} {at}.",
        tools={tool: adjusted(mock, policy, edge) for tool, mock in mocks.items()},
        style="" if edge.is_allowed else "adversarial",
        limit=(policy, edge),
        must_say=(edge.value, str(value)),
    )
    if goal is None:
        return made
    argument = limit_argument(goal, policy)
    if seed := material.seeds.get(goal.name):
        turns = list(seed.messages)
        turns[-1] = _with_fact(turns[-1], policy, edge, seed.args.get(argument) if argument else None)
    else:
        others = {name: each for name, each in goal.arguments.items() if name != argument}
        turns = [f"{_request(goal, others)} {policy.fact(edge)}"]
    is_amount = argument is not None and policy.unit != "clock" and not policy.is_span
    call = (ExpectedCall(goal.name, {argument: number(value)} if argument and is_amount else None),)
    if edge.is_allowed:
        return replace(made, turns=(*turns, _AGREES), expected=call)
    return replace(made, turns=(*turns, _INSISTS), forbidden=call)


def _fits_limit(policy: Policy, goal: ToolGoal) -> float:
    return 2.0 if limit_argument(goal, policy) else 0.0


def limit_argument(goal: ToolGoal, policy: Policy) -> str | None:
    """Return the argument of a tool that a limit is about; None if none is known."""
    wanted = stems(policy.unit)
    if policy.unit in _MONEY or policy.unit in ("usd", "eur", "gbp", "dollar", "euro", "pound"):
        wanted = _AMOUNTS
    elif policy.unit == "clock":
        wanted = stems("time start hour slot at")
    elif policy.unit == "%":
        wanted = stems("percent percentage discount rate")
    elif not policy.is_span:
        wanted |= _COUNTS
    for name, schema in goal.properties.items():
        value = goal.recorded.get(name)
        kind = schema.get(
            "type", "string" if isinstance(value, str) else "number" if value is not None else None
        )
        fits = kind in ("string", None) if policy.unit == "clock" else kind in ("integer", "number", None)
        if fits and stems(name) & wanted:
            return name
    return None


def _with_fact(message: str, policy: Policy, edge: Edge, recorded: Any) -> str:
    """State the value of a limit in a message, in place of another value of its kind."""
    unit = re.escape(policy.unit)
    patterns = {"clock": r"\b\d{1,2}:\d{2}(?:\s?[ap]m)?\b"} | {
        money: rf"\{money}\s?\d[\d,.]*\d|\{money}\d" for money in _MONEY
    }
    pattern = patterns.get(policy.unit, rf"\b\d[\d,.]*[\s-]?{unit}(?:s|es)?\b" if unit else "(?!)")
    changed, hits = re.subn(pattern, lambda _: edge.value, message, count=1, flags=re.IGNORECASE)
    if not hits and recorded is not None and not isinstance(recorded, bool):
        plain = edge.value if isinstance(recorded, str) else str(plain_number(edge.number))
        changed, hits = re.subn(rf"\b{re.escape(str(recorded))}\b", lambda _: plain, message, count=1)
    return changed if hits else f"{message.rstrip()} {policy.fact(edge)}"


def _case_of_row(row: MatrixRow, material: Material) -> Case:
    goal, call = row.goal, ExpectedCall(row.goal.name)
    about = f"{row.condition} {row.argument}".strip()
    base = Case(
        name=f"{_words(goal)}: {about} ({row.style})",
        group=f"tool {goal.name}",
        tool=goal.name,
        origin=f"tool {goal.name}: {about}; user: {row.style}",
        tools=mocks_for(material, goal),
        style=row.style,
        criterion=f"The assistant does what the user wants: {goal.request.removeprefix('Please ')}",
    )
    if row.condition == MISSING:
        criterion = f"The assistant asks for {row.argument} and invents no value."
        name = f"{_words(goal)} without {row.argument}: asks ({row.style})"
        return _asking(goal, row.argument, replace(base, name=name, criterion=criterion))
    names = list(goal.properties)[:_MOST_ARGUMENTS] if row.condition == PLAIN else list(goal.required)
    arguments = {name: goal.value(name) for name in names} or goal.arguments
    if row.condition in (LEAST, MOST, CHOICE):
        arguments |= {row.argument: row.value}
        is_number = isinstance(row.value, int | float) and not isinstance(row.value, bool)
        call = ExpectedCall(goal.name, {row.argument: number(row.value) if is_number else row.value})
        name = f"{_words(goal)}: {row.argument} {row.value} ({row.style})"
        base = replace(base, name=name, must_say=(str(row.value),))
    seed = material.seeds.get(goal.name)
    turns = list(seed.messages) if seed and row.condition == PLAIN else [_request(goal, arguments)]
    turns[0] = _in_style(turns[0], row.style)
    return replace(base, turns=(*turns, _AGREES) if goal.is_write else tuple(turns), expected=(call,))


def _asking(goal: ToolGoal, argument: str, base: Case) -> Case:
    """Return the case in which the user first leaves out an argument."""
    others = {each: value for each, value in goal.arguments.items() if each != argument}
    first = _in_style(_request(goal, others), base.style)
    turns = (first, stated({argument: goal.value(argument)}), _AGREES)
    return replace(base, turns=turns, expected=(ExpectedCall(goal.name),), asks_first=True)


def _in_style(message: str, style: str) -> str:
    return STYLES.get(style, "{}").replace("{}", message)


def _request(goal: ToolGoal, arguments: Mapping[str, Any]) -> str:
    return f"{goal.request} {stated(arguments)}".strip()


def _words(goal: ToolGoal) -> str:
    return " ".join(words_of(goal.name)) or goal.name


def _is_plain_ban(quote: str, goal: ToolGoal) -> bool:
    """Return True if a ban has no condition that a script would have to create."""
    return len(stems(quote) - _BAN_WORDS - goal.words) <= 1


def plain_number(number: Fraction) -> int | float:
    return int(number) if number.denominator == 1 else float(number)


def mocks_for(
    material: Material, goal: ToolGoal | None, policy: Policy | None = None, edge: Edge | None = None
) -> dict[str, Mock]:
    """Return a mock for each known tool: of the script's scenario, of another one, recorded, or by schema.

    A recorded result replaces a function if it has the value that a limit is about.
    """
    seed = material.seeds.get(goal.name) if goal else None
    mocks = {**material.mocks, **(seed.tools if seed else {})}
    for name, answer in material.answers.items():
        mock = mocks.setdefault(name, answer)
        if isinstance(mock, BoundFunction):
            is_changed = policy and edge and adjusted(answer, policy, edge) != answer
            mocks[name] = answer if is_changed or copy_function(mock.function) is None else mock
    for each in material.goals:
        if each.name not in mocks:
            mocks[each.name] = (
                example(each.name, each.tool.returns) if each.tool.returns else {"status": "ok"}
            )
    return mocks


def adjusted(value: Any, policy: Policy, edge: Edge, key: str = "", *, as_source: bool = True) -> Any:
    """Return a result of a tool in which numbers and dates that a limit is about have the value of the edge.

    Args:
        as_source: True if a date is to be computed when the scenario runs.
    """
    go_on = partial(adjusted, policy=policy, edge=edge, as_source=as_source)
    if isinstance(value, Mapping):
        return {name: go_on(each, key=str(name)) for name, each in value.items()}
    if isinstance(value, list):
        return [go_on(each, key=key) for each in value]
    names = stems(key)
    if isinstance(value, int | float) and not isinstance(value, bool):
        wanted = _AMOUNTS if policy.unit in _MONEY else stems(policy.unit)
        return plain_number(edge.number) if names & wanted else value
    about = (stems(policy.tail) or stems(policy.quote)) | stems("ordered purchased bought delivered")
    if isinstance(value, str) and policy.unit in _DAYS and names & about and _DATE.fullmatch(value):
        days = int(edge.number * _DAYS[policy.unit]) * (-1 if policy.tail.startswith("before") else 1)
        if not as_source:
            return (date.today() - timedelta(days)).isoformat()
        source = f"(date.today() - timedelta(days={days})).isoformat()"
        return SourceExpression(source, "from datetime import date, timedelta")
    return value


def _with_unique_names(cases: Iterable[Case]) -> list[Case]:
    unique: list[Case] = []
    taken: set[str] = set()
    for case in cases:
        name, number = shortened(" ".join(case.name.split()), _NAME_CHARS), 2
        while name in taken:
            name, number = f"{shortened(case.name, _NAME_CHARS - 5)} ({number})", number + 1
        taken.add(name)
        unique.append(replace(case, name=name))
    return unique


class Fingerprint(NamedTuple):
    """What a scenario is compared by: pairs of words with the tools it names, and numbers."""

    name: str
    elements: frozenset[str]
    numbers: frozenset[str]


def fingerprint(scenario: Scenario) -> Fingerprint:
    """Return what a scenario is compared by."""
    texts = [turn.user_message for turn in scenario.turns] or [scenario.goal, *scenario.knowledge]
    words = re.findall(r"\w+", " ".join(texts).lower())
    tools = (f"tool {name}" for name in scenario.named_tools)
    elements = frozenset((*map(" ".join, pairwise(words)), *tools))
    return Fingerprint(scenario.name, elements, frozenset(filter(str.isdigit, words)))


def similarity(one: Fingerprint, other: Fingerprint) -> float:
    """Return how much two scenarios share: 1 with one name, at most 0.5 if numbers differ."""
    if one.name == other.name:
        return 1.0
    shared = len(one.elements & other.elements) / max(len(one.elements | other.elements), 1)
    return shared if one.numbers == other.numbers else min(shared, 0.5)


def nearest(case: Case, material: Material) -> tuple[float, str]:
    """Return the most similar existing scenario, with the similarity; (0, "") without any."""
    mine = fingerprint(case.scenario)
    return max(((similarity(mine, each), each.name) for each in material.fingerprints), default=(0.0, ""))


def source_of(cases: Sequence[Case]) -> str:
    """Return the module that defines these scenarios. Raises ValueError if a mock has no source."""
    origins = ("".join(each if each.isprintable() else " " for each in case.origin) for case in cases)
    comments = [shortened(each, _COMMENT_CHARS) for each in origins]
    return scenarios_source([each.scenario for each in cases], comments, _ABOUT, lambda _: {"status": "ok"})


def free_path(path: Path) -> Path:
    """Return the path, or with the next number if it exists: `generated-2.sim.py`."""
    stem, number, free = path.name.removesuffix(".sim.py"), 2, path
    while free.exists():
        free, number = path.with_name(f"{stem}-{number}.sim.py"), number + 1
    return free
