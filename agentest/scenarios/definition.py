"""Define scenarios in scenario files: `scenario()` and `sequence()`.

`scenario()` validates its options immediately, so that an error points to its line. It registers the scenario
with the discovery that is importing the file, if any; otherwise it only returns the value. While a discovery
imports the file, an invalid scenario is registered with its problem instead of raising, so that the file's
other scenarios still run and every mistake is reported.
"""

from __future__ import annotations

import datetime
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Protocol, cast

from agentest.domain.changes import Fault
from agentest.domain.messages import Session
from agentest.domain.metrics import metric_name, normalize_thresholds
from agentest.domain.repeat_setting import EXCLUDES, parse_repeat
from agentest.mocks.binding import MockSequence
from agentest.scenarios import parser
from agentest.scenarios.expectations import check_turns, parse_expected_state, parse_sayings
from agentest.scenarios.matchers.display import brief
from agentest.scenarios.model import (
    Check,
    Criterion,
    Persona,
    Scenario,
    ScriptedTurn,
    parse_approve,
    parse_criteria,
    parse_decides,
    parse_session,
    with_deciders,
)
from agentest.scenarios.options import parse_check, parse_profile, parse_state, parse_tools, parse_user_tools
from agentest.scenarios.script import (
    parse_attachments,
    parse_body,
    parse_headers,
    parse_history,
    parse_script,
    parse_trajectory_options,
)
from agentest.scenarios.trajectory import CallOrder
from agentest.support.calling import message_of_error
from agentest.support.dates import normalize_date
from agentest.support.errors import ScenarioError, errors_as
from agentest.support.importing import raised_at
from agentest.support.text import count, did_you_mean, nearest, snake_keys

if TYPE_CHECKING:
    from agentest.domain.changes import Attack, Injection
    from agentest.scenarios.expectations import Saying
    from agentest.scenarios.rows import MakeOptions, Row, RowSource, RowTemplate

    Convert = Callable[[dict[str, Any]], dict[str, Any]]

_registry: ContextVar[list[Scenario] | None] = ContextVar("agentest_registry", default=None)
PLACEHOLDERS = ("profile", "goal", "knowledge", "date")


@contextmanager
def collect_scenarios() -> Iterator[list[Scenario]]:
    """Collect the scenarios that are defined within this context."""
    scenarios: list[Scenario] = []
    _absolute.cache_clear()  # links may have changed
    token = _registry.set(scenarios)
    try:
        yield scenarios
    finally:
        _registry.reset(token)


def sequence(*values: Any) -> MockSequence:
    """Return a mock that answers with `values` in order and then repeats the last one.

        tools = {"pay": sequence(ToolError("the bank is closed"), {"paid": True})}

    `sequence([a, b])` is the same as `sequence(a, b)`. A function is called, and an exception is raised.
    Raises ValueError if there is no value.
    """
    steps = tuple(values[0]) if len(values) == 1 and isinstance(values[0], list) else values
    if not steps:
        raise ValueError("sequence() needs at least one value")
    if any(isinstance(step, MockSequence) for step in steps):
        raise ValueError("a sequence() cannot hold another sequence()")
    return MockSequence(steps)


_P = ParamSpec("_P")


class ScenarioFunction(Protocol[_P]):
    """The type of `scenario`: a function with the method `each`."""

    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> Scenario: ...

    def each(
        self, rows: RowSource, name: str = "{name}", *, options: MakeOptions | None = None, **template: Any
    ) -> list[Scenario]:
        """Define one scenario for each row of data."""


def _each(
    rows: RowSource, name: str = "{name}", *, options: MakeOptions | None = None, **template: Any
) -> list[Scenario]:
    """Define one scenario for each row.

    Args:
        rows: a list of dicts from column to value, or the path of a .csv, .tsv, .jsonl or .json file,
            relative to the scenario file.
        name: the name of each scenario, with placeholders: `"order {order_id}"`.
        options: a function that receives a row as a dict and returns options for it.
        template: the options of `scenario()`. `{column}` stands for a row's value in every text, at any
            depth; a text that is only a placeholder becomes the value with its type. A column that is
            named like an option gives that option, unless a placeholder uses it.

    Raises:
        ScenarioError: as `scenario()` does, with the row.
    """
    frame = sys._getframe(1)
    file, line = _absolute(frame.f_code.co_filename), frame.f_lineno
    return define_each(rows, {**template, "name": name}, file, line, make=options)


def _with_each(function: Callable[_P, Scenario]) -> ScenarioFunction[_P]:
    vars(function)["each"] = _each
    return cast("ScenarioFunction[_P]", function)


_NO_OPTION = ("mapping", "camel_case")


@_with_each
def scenario(
    name: str,
    mapping: Mapping[str, Any] | None = None,
    *,
    profile: str | Persona | None = None,
    goal: str | None = None,
    knowledge: Sequence[str | Mapping[str, str]] | None = None,
    user_prompt_template: str | None = None,
    conversations_per_scenario: int | None = None,
    repeat: Mapping[str, Any] | str | None = None,
    max_turns: int | None = None,
    parallel: bool | None = None,
    agent: str | None = None,
    turns: Sequence[str | Mapping[str, Any]] | None = None,
    then: Literal["simulate"] | None = None,
    first_message: str | None = None,
    history: Sequence[Mapping[str, Any]] | None = None,
    attachments: Sequence[str | Mapping[str, str]] | None = None,
    headers: Mapping[str, str] | None = None,
    body: Mapping[str, Any] | None = None,
    user: str | Attack | Mapping[str, Any] | None = None,
    tools: Mapping[str, Any] | Literal["simulate"] | None = None,
    mocks: Mapping[str, Any] | None = None,
    trajectory: Mapping[str, Any] | CallOrder | Sequence[Mapping[str, Any] | CallOrder] | None = None,
    assertions: Mapping[str, Any] | None = None,
    expect: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    state: Mapping[str, Any] | None = None,
    final_state: Mapping[str, Any] | None = None,
    check: Check | None = None,
    user_tools: Mapping[str, Any] | None = None,
    thresholds: Mapping[str, float] | None = None,
    metrics: Sequence[str] | None = None,
    expected_outcome: str | None = None,
    criteria: Sequence[str | Criterion | Mapping[str, Any]] | None = None,
    decides: Sequence[Literal["goal", "criteria", "metrics"]] | None = None,
    patience: int | None = None,
    date: str | datetime.date | None = None,
    tags: Sequence[str] | None = None,
    session: Session | Mapping[str, Any] | None = None,
    final_session_state: Mapping[str, Any] | None = None,
    model_faults: Sequence[Fault | str | Mapping[str, Any]] | None = None,
    faults: Sequence[Fault | Mapping[str, Any]] | None = None,
    inject: Sequence[Injection | Mapping[str, Any]] | None = None,
    mutate: Sequence[str] | None = None,
    never: Sequence[Any] | None = None,
    secrets: Sequence[str] | None = None,
    consent: Mapping[str, str] | None = None,
    approve: bool | Mapping[str, bool] | None = None,
    explore: bool | Mapping[str, Any] | None = None,
    skip: bool | str | None = None,
    **camel_case: Any,
) -> Scenario:
    """Define a scenario. Every option is also accepted in camelCase.

        scenario(
            "refunds a late order",
            goal="Get a refund for order 17, which came late.",
            tools={"get_order": {"days_late": 9}, "refund": {"refunded": True}},
            trajectory={"expected": ["get_order", call("refund", order=17)]},
        )

    Args:
        name: unique within a run.
        mapping: options in place of keywords, which take precedence over it.
        profile: a description of the simulated user: a text, or `persona("vague", "impatient")`.
        goal: the goal of the simulated user; required unless `turns` are the whole script.
        knowledge: facts that the simulated user knows, texts or `{"content": text}`.
        user_prompt_template: the simulated user's prompt; `{{profile}}`, `{{goal}}`, … are filled in.
        conversations_per_scenario: number of conversations (default: configuration; scripted: 1).
        repeat: run conversations until the verdict is decided, "3..20" for example (default: configuration).
        max_turns: maximum length of a conversation, in turns (default: configuration).
        parallel: False runs its conversations one after another (default: configuration).
        agent: name of an agent in the configuration's `agents`.
        turns: makes it scripted: user messages, or dicts with `user_message`, `trajectory` and `expect`.
        then: "simulate": after `turns`, a simulated user goes on.
        first_message: the simulated user's first message, word for word.
        history: messages before the first turn: `role`, `content`, and `tool_calls` with their results.
        attachments: files of the first message: paths, or dicts of `path` or `url`, `mime_type`, `name`.
        headers: further headers of the requests to the agent.
        body: further fields of the requests to the agent.
        user: an adversarial user: `crescendo`, `goat`, `pair`, …, or `attack("goat", objective="…")`.
        tools: tool name → a value, a function or `sequence(…)`; or `"simulate"`. `mocks` has them in `tools`.
        trajectory: expected tool calls of the whole conversation, or a list, each with a name. All must hold.
        assertions: `{"toolCalls": …}` is the same as `trajectory`.
        expect: what the agent `says` and `never_says` in the whole conversation.
        state: the initial value of `ctx.state` for the mocks; each conversation gets its own copy.
        final_state: keys of the mocks' state → their values at the end, or matchers.
        check: a function of the conversation and the mocks' final state; returns a problem or raises one.
        user_tools: tool name → mock, for the simulated user only.
        thresholds: metric → minimum average; `pass_rate` → minimum share of conversations that pass;
            `latency_p95_ms` → maximum time for 95 % of the turns; `cost` → maximum USD a conversation.
        metrics: built-in metrics to judge (default: configuration).
        expected_outcome: the expected end of the conversation, which `goal_completion` judges.
        criteria: sentences that must be true for the whole conversation. A violated one fails the scenario,
            unless it is a `Criterion(text, required=False)`.
        decides: what judges decide: some of `goal`, `criteria`, `metrics` (default: all). The rest is shown.
        patience: number of identical unhelpful answers after which the simulated user gives up.
        date: the date or date-time (ISO 8601) for the user and the judges (default: configuration, today).
        tags: for `agentest run --tag`.
        session: the agent's session: `state` (JSON), `app_name`, `user_id`, `session_id`.
        final_session_state: keys of the session's state → their values after the last turn, or matchers.
        model_faults: `fault(…)` values: how the agent's model fails. Requires `model_gateway`.
        faults: `fault(…, tool=…)` values: how mocked tools fail; or `fault(…).then(mock)` in `tools`.
        inject: `injection(…)` values: instructions planted in tool answers, user messages or knowledge.
        mutate: names of mutations of the user's messages, such as `typos`.
        never: what must never happen: `call(…)`, a text or matcher of a reply, or a function like `check`.
        secrets: planted texts that the agent may not pass on.
        consent: tool → pattern of the user's texts that agree to its calls, such as `{"pay": "yes|confirm"}`.
        approve: the answer when the agent asks for approval: True, False, or a dict from tool to answer.
        explore: False, or `{"without": […], "reason": …}`: what `agentest explore` leaves out.
        skip: True, or the reason why the scenario is not run.

    Raises:
        ScenarioError: with file, line, scenario and option, unless a discovery is importing the file.
    """
    options = {key: value for key, value in locals().items() if key not in _NO_OPTION and value is not None}
    options.setdefault("name", name)
    if callable(name):
        raise TypeError('scenario(…) is not a decorator; call it: scenario("a name", turns=[…])')
    if not isinstance(mapping, Mapping | None):
        what = 'only the name comes without a keyword: scenario("a name", goal="…")'
        raise TypeError(f"{what}, or a mapping of options, not {brief(mapping)}")
    frame, options = sys._getframe(1), {**(mapping or {}), **options, **camel_case}
    return define(options, _absolute(frame.f_code.co_filename), frame.f_lineno)


OPTIONS = ("name", *getattr(scenario, "__kwdefaults__", ()))


def define(
    options: Mapping[str, Any],
    file: str,
    line: int,
    describe: Callable[[str], str] | None = None,
    data_file: Path | None = None,
) -> Scenario:
    """Build a scenario of options in either spelling, and register it.

    Args:
        describe: returns the message for a problem, with file and line; None: all are at this file and line.
        data_file: the file whose row gives options.

    Raises ScenarioError, or registers the scenario with its problems, as `scenario` does.
    """
    try:
        new = build_scenario(options, file, line)
    except Exception as error:  # noqa: BLE001 - users' objects may raise on any access
        describe = describe or f"{file}:{line}: scenario {brief(options['name'])}: ".__add__
        problem = "\n".join(map(describe, _problems(options, error)))
        return register_invalid(options, file, line, problem, data_file)
    return _registered(new, data_file)


def _problems(options: Mapping[str, Any], error: Exception) -> Sequence[str]:
    if isinstance(error, parser.InvalidOptions):
        return error.problems
    return [str(error) if isinstance(error, ValueError) else describe_unreadable(options, error)]


def _registered(new: Scenario, data_file: Path | None) -> Scenario:
    new = replace(new, data_file=str(data_file)) if data_file else new
    if (registry := _registry.get()) is not None:
        registry.append(new)
    return new


def register_invalid(
    options: Mapping[str, Any], file: str, line: int, problem: str, data_file: Path | None = None
) -> Scenario:
    """Register a placeholder for an invalid scenario. Raises ScenarioError outside of a discovery."""
    if _registry.get() is None:
        raise ScenarioError(problem) from None
    return _registered(refused_scenario(options, file, line, problem), data_file)


def define_each(
    source: RowSource,
    template: Mapping[str, Any],
    file: str,
    line: int,
    *,
    make: MakeOptions | None = None,
    convert: Convert | None = None,
    locate: Callable[[str], int] | None = None,
) -> list[Scenario]:
    """Define a scenario for each row of data, from options in either spelling with the template of `name`.

    Args:
        convert: converts the options of each row, such as from forms in data. Raises ValueError.
        locate: returns the line of a problem; None: all are at `line`.

    Raises ScenarioError, or registers invalid scenarios with their problems, as `scenario` does.
    """
    from agentest.scenarios.rows import RowTemplate, read_rows

    def fail(problems: Sequence[str], options: Mapping[str, Any], location: str = "") -> Scenario:
        head = f"scenario {brief(options['name'])}{location}"
        texts = (f"{file}:{locate(each) if locate else line}: {head}: {each}" for each in problems)
        return register_invalid(options, file, line, "\n".join(texts), data_file)

    data_file = Path(file).parent / source if isinstance(source, str | os.PathLike) else None
    try:
        options = snake_keys(template, OPTIONS)
        if unknown := [key for key in options if key not in OPTIONS]:
            raise ValueError(f"unknown option `{unknown[0]}`; {parser.meant(str(unknown[0]), OPTIONS)}")
        rows = read_rows(source, Path(file).parent)
    except ValueError as error:
        return [fail([str(error)], template)]
    built = list(_build_rows(rows, RowTemplate(options, OPTIONS, make), convert, file, line))
    problems = [result for *_, result in built if not isinstance(result, Scenario)]
    if len(problems) == len(rows) > 1 and all(each == problems[0] for each in problems):
        return [fail(problems[0], template, f", all {len(rows)} rows")]  # a mistake in the template
    return [
        _registered(result, data_file)
        if isinstance(result, Scenario)
        else fail(result, made, f", {row.location}")
        for row, made, result in built
    ]


def _build_rows(
    rows: Iterable[Row], template: RowTemplate, convert: Convert | None, file: str, line: int
) -> Iterator[tuple[Row, Mapping[str, Any], Scenario | Sequence[str]]]:
    locations: dict[str, str] = {}
    for row in rows:
        made: Mapping[str, Any] = template.options
        result: Scenario | Sequence[str]
        try:
            made = template.options_of(row)
            first = locations.setdefault(parser.nonempty_text(made["name"], "name"), row.location)
            if first is not row.location:
                raise ValueError(f"name: is that of {first}, too; put a column that differs into `name`")
            made = convert(dict(made)) if convert else made
            result = build_scenario(made, file, line)
        except Exception as error:  # noqa: BLE001 - users' objects may raise on any access
            result = _problems(made, error)
        yield row, made, result


@lru_cache(maxsize=1)
def _absolute(file: str) -> str:
    return str(Path(file).resolve())


def build_scenario(options: Mapping[str, Any], file: str, line: int) -> Scenario:
    """Return the scenario. Raises InvalidOptions with all problems, or ValueError if options conflict."""
    options = snake_keys(options, OPTIONS)
    options = {key: value for key, value in options.items() if value is not None or key == "name"}
    collector = parser.ProblemCollector()
    collector.problems += [
        f"unknown option `{key}`; {parser.meant(str(key), OPTIONS)}" for key in options if key not in OPTIONS
    ]
    goal = collector.parse(parser.checked_text, options.get("goal", ""), "goal")
    turns, is_continued = collector.parse(parse_script, options) or ((), False)
    is_simulated = "then" in options or not {"turns", "user"} & options.keys()
    is_misspelt = {nearest(str(key), OPTIONS) for key in options if key not in OPTIONS} & {"goal", "turns"}
    if is_simulated and goal is not None and not goal.strip() and not is_misspelt:
        lacking = "has `then`, but no `goal`" if "then" in options else "has neither `goal` nor `turns`"
        missing = "`goal` is empty" if "goal" in options else lacking
        collector.problems.append(f"{missing}; give a goal for a simulated user, or turns for a script")
    parsed = {
        key: collector.parse(parse, options[key], key) for key, parse in _PARSERS.items() if key in options
    }
    files = collector.parse(parse_attachments, options.get("attachments", ()), Path(file).parent)
    expect = collector.parse(parse_sayings, options.get("expect"))
    trajectories = collector.parse(parse_trajectory_options, options)
    tools = collector.parse(parse_tools, options)
    changes = _changes(collector, options) if _CHANGES & options.keys() else None
    user_tools = collector.parse(parse_user_tools, options.get("user_tools"), scripted=not is_simulated)
    collector.check()
    profile = parsed.get("profile", "")
    if not isinstance(profile, str):
        parsed["profile"] = profile.text
        if profile.patience and is_simulated:
            parsed.setdefault("patience", profile.patience)
    if "repeat" in parsed and "conversations_per_scenario" in parsed:
        raise ValueError(EXCLUDES)
    if turns:
        _check_script(turns, parsed, expect, is_continued=is_continued)
    if (most := parsed.get("max_turns")) is not None:
        check_turns(expect, most, f"`max_turns` is {most}")
    if trajectories or expect or any(turn.expect for turn in turns):
        from agentest.scenarios.contradictions import check_sayings, check_user_tools

        check_sayings(turns, expect)
        check_user_tools(trajectories, user_tools)
    new = Scenario(
        **parsed,
        file=file,
        line=line,
        goal=goal,
        turns=turns,
        is_continued=is_continued,
        attachments=files,
        tools=tools,
        simulates_tools=options.get("tools") == "simulate",
        trajectory=trajectories,
        expect=expect,
        user_tools=user_tools,
    )
    new = changes(new) if changes else new
    return with_deciders(new) if "decides" in parsed else new


def _check_script(
    turns: Sequence[ScriptedTurn], parsed: Mapping[str, Any], expect: Sequence[Saying], *, is_continued: bool
) -> None:
    script, max_turns = f"the script has {count(len(turns), 'turn')}", parsed.get("max_turns")
    if max_turns is not None and max_turns < len(turns) + is_continued:
        after = ", after which the simulated user goes on" if is_continued else ""
        raise ValueError(f"max_turns: is {max_turns}, but {script}{after}")
    if not is_continued:
        if "patience" in parsed:
            raise ValueError(
                "patience: is for a simulated user; a script says all its turns, so leave it out"
            )
        check_turns(expect, len(turns), script)


_CHANGES = frozenset(
    ("faults", "model_faults", "inject", "mutate", "never", "secrets", "consent", "explore", "user")
)
"""Options of `variations`, which is imported only for them."""


def _changes(
    collector: parser.ProblemCollector, options: Mapping[str, Any]
) -> Callable[[Scenario], Scenario]:
    from agentest.scenarios.variations import parse_changes

    return parse_changes(collector, {key: options[key] for key in _CHANGES & options.keys()})


def parse_date(value: Any, key: str) -> str | None:
    """Return the date of a scenario or case. Raises ValueError."""
    return None if value is None else _with_key(normalize_date)(value, key)


def _with_key(parse: Callable[[Any], Any]) -> Callable[[Any, str], Any]:
    def parse_option(value: Any, key: str) -> Any:
        with errors_as(ValueError, f"{key}: "):
            return parse(value)

    return parse_option


def _knowledge(facts: Any, key: str) -> tuple[str, ...]:
    texts = []
    for i, item in enumerate(parser.listed(facts, key, "a list of texts")):
        at = f"{key}[{i}]"
        if isinstance(item, Mapping):
            item, at = parser.known_keys(item, ("content",), at).get("content"), f"{at}.content"
        texts.append(parser.nonempty_text(item, at))
    return tuple(texts)


def _thresholds(thresholds: Any, key: str) -> dict[str, float]:
    parser.checked(thresholds, key, "a dict from metric to number", isinstance(thresholds, Mapping))
    values: dict[str, float] = _with_key(normalize_thresholds)(thresholds, key)
    return values


def _skip(skip: Any, key: str) -> str | None:
    parser.checked(skip, key, "True, False or a reason", str(skip).lower() not in ("yes", "no", "on", "off"))
    return ("skip=True" if skip else None) if isinstance(skip, bool) else parser.nonempty_text(skip, key)


def refused_scenario(options: Mapping[str, Any], file: str, line: int, problem: str) -> Scenario:
    """Return a placeholder for a scenario with invalid options, with its name and tags for selection."""
    name, tags = options["name"], options.get("tags", ())
    tags = (tags,) if isinstance(tags, str) else tags
    return Scenario(
        name=name if isinstance(name, str) and name.strip() else f"scenario {brief(name)}",
        file=file,
        line=line,
        tags=tuple(tag for tag in tags if isinstance(tag, str)) if isinstance(tags, list | tuple) else (),
        refused=problem,
    )


def describe_unreadable(options: Mapping[str, Any], error: Exception) -> str:
    """Describe options that could not be read because an object in them raised `error`."""
    key = next((name for name, value in options.items() if _raises(name, value)), "an option")
    if isinstance(error, RecursionError):
        return f"{key}: contains itself, or is nested too deeply"
    at = raised_at(error)
    words = f"{type(error).__name__}: {message_of_error(error)}".removesuffix(": ")
    return f"{key}: an object in it cannot be read: it raised {words}" + (f" ({at})" if at else "")


def _raises(name: str, value: Any) -> bool:
    try:
        build_scenario({"name": "x", "goal": "x", name: value}, "", 0)
    except ValueError:
        return False
    except Exception:  # noqa: BLE001 - any other exception identifies this option
        return True
    return False


def _template(template: Any, key: str) -> str:
    from agentest.support.templates import placeholders

    text = parser.nonempty_text(template, key)
    for name in placeholders(text):
        if name not in PLACEHOLDERS:
            hint = did_you_mean(name, PLACEHOLDERS)
            raise ValueError(f"{key}: unknown placeholder {{{{{name}}}}}; {hint}")
    return text


_PARSERS: Mapping[str, Callable[[Any, str], Any]] = {
    "name": parser.nonempty_text,
    "profile": parse_profile,
    "knowledge": _knowledge,
    "user_prompt_template": _template,
    "conversations_per_scenario": parser.positive,
    "repeat": _with_key(parse_repeat),
    "max_turns": parser.positive,
    "parallel": parser.boolean,
    "agent": parser.nonempty_text,
    "thresholds": _thresholds,
    "metrics": lambda names, key: tuple(
        metric_name(parser.nonempty_text(name, key))
        for name in parser.listed(names, key, "a list of metric names")
    ),
    "expected_outcome": lambda text, key: parser.nonempty_text(text, key).strip(),
    "criteria": parse_criteria,
    "decides": parse_decides,
    "patience": parser.positive,
    "date": parse_date,
    "tags": lambda tags, key: tuple(
        parser.nonempty_text(tag, key) for tag in parser.listed(tags, key, "a list of texts")
    ),
    "skip": _skip,
    "session": parse_session,
    "history": parse_history,
    "headers": parse_headers,
    "body": parse_body,
    "approve": parse_approve,
    "state": parse_state,
    "final_state": parse_expected_state,
    "check": parse_check,
    "final_session_state": parse_expected_state,
}
