"""A scenario out of the options of `scenario()`, which are checked. What is wrong raises ValueError."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentest.domain.metrics import metric_name, normal_thresholds
from agentest.domain.repeat import EXCLUDES, Repeat, parse_repeat
from agentest.scenarios.agreement import check_sayings, check_user_tools
from agentest.scenarios.criteria import parse_criteria
from agentest.scenarios.expectations import (
    check_turns,
    parse_expect,
    parse_expected_state,
    parse_sayings,
)
from agentest.scenarios.matchers.showing import brief
from agentest.scenarios.model import Scenario, ScriptedTurn
from agentest.scenarios.parsing import checked_text, known_keys, needed_text, positive, yes_or_no
from agentest.scenarios.session import parse_session
from agentest.scenarios.state import parse_check, parse_state
from agentest.scenarios.tools import parse_tools, parse_user_tools
from agentest.scenarios.trajectories import parse_trajectories
from agentest.scenarios.trajectory import Trajectory
from agentest.support.calling import words_of
from agentest.support.moments import checked_date
from agentest.support.raised_at import raised_at
from agentest.support.spelling import did_you_mean
from agentest.support.text import count


def made(options: dict[str, Any], file: str, line: int) -> Scenario:
    turns = _turns(options.get("turns"))
    goal = checked_text(options.get("goal", ""), "goal")
    if not turns and not goal.strip():
        raise ValueError(
            "has neither `goal` nor `turns`; give a goal for a simulated user, or turns for a script"
        )
    max_turns = positive(options.get("max_turns"), "max_turns")
    if max_turns is not None and turns and max_turns < len(turns):
        raise ValueError(f"max_turns: is {max_turns}, but the script has {len(turns)} turns")
    if turns and options.get("patience") is not None:
        raise ValueError("patience: is for a simulated user; a script says all its turns, so leave it out")
    expect = parse_sayings(options.get("expect"))
    if turns:
        check_turns(expect, len(turns), f"the script has {count(len(turns), 'turn')}")
    if max_turns is not None:
        check_turns(expect, max_turns, f"`max_turns` is {max_turns}")
    check_sayings(turns, expect)
    trajectories = trajectories_of(options)
    user_tools = parse_user_tools(options.get("user_tools"), scripted=bool(turns))
    check_user_tools(trajectories, user_tools)
    return Scenario(
        name=needed_text(options["name"], "name"),
        file=file,
        line=line,
        profile=checked_text(options.get("profile", ""), "profile"),
        goal=goal,
        knowledge=_knowledge(options.get("knowledge", ())),
        user_prompt_template=_template(options.get("user_prompt_template")),
        conversations_per_scenario=positive(
            options.get("conversations_per_scenario"), "conversations_per_scenario"
        ),
        repeat=_repeat(options),
        max_turns=max_turns,
        parallel=yes_or_no(options.get("parallel"), "parallel"),
        agent=needed_text(options["agent"], "agent") if "agent" in options else None,
        turns=turns,
        tools=parse_tools(options),
        trajectory=trajectories,
        thresholds=_thresholds(options.get("thresholds", {})),
        metrics=_metrics(options.get("metrics")),
        expected_outcome=_expected_outcome(options),
        criteria=parse_criteria(options.get("criteria", ())),
        patience=positive(options.get("patience"), "patience"),
        date=parse_date(options.get("date"), "date"),
        tags=_tags(options.get("tags", ())),
        skip=_skip(options.get("skip")),
        session=parse_session(options.get("session")),
        expect=expect,
        state=parse_state(options.get("state")),
        final_state=parse_expected_state(options.get("final_state"), "final_state"),
        check=parse_check(options.get("check")),
        user_tools=user_tools,
        final_session_state=parse_expected_state(options.get("final_session_state"), "final_session_state"),
    )


def refused(options: Mapping[str, Any], file: str, line: int, problem: str) -> Scenario:
    """The scenario that stands in for one whose options are wrong, with what selects it: name and tags."""
    name, tags = options["name"], options.get("tags", ())
    tags = (tags,) if isinstance(tags, str) else tags
    return Scenario(
        name=name if isinstance(name, str) and name.strip() else f"scenario {brief(name)}",
        file=file,
        line=line,
        tags=tuple(tag for tag in tags if isinstance(tag, str)) if isinstance(tags, list | tuple) else (),
        refused=problem,
    )


def unreadable(options: Mapping[str, Any], error: Exception) -> str:
    """What is wrong with options that could not be read because something in them raised `error`."""
    key = next((name for name, value in options.items() if _raises(name, value)), "an option")
    if isinstance(error, RecursionError):
        return f"{key}: contains itself, or is nested too deeply"
    at = raised_at(error)
    words = f"{type(error).__name__}: {words_of(error)}".removesuffix(": ")
    return f"{key}: an object in it cannot be read: it raised {words}" + (f" ({at})" if at else "")


def _raises(name: str, value: Any) -> bool:
    """Whether an option cannot be read even alone."""
    try:
        made({"name": "x", "goal": "x", name: value}, "", 0)
    except ValueError:
        return False
    except Exception:  # noqa: BLE001 - whatever it was, it is this one
        return True
    return False


def _repeat(options: Mapping[str, Any]) -> Repeat | None:
    """What the options say of `repeat`, which no fixed number of conversations may stand beside."""
    try:
        repeat = parse_repeat(options.get("repeat"))
    except ValueError as error:
        raise ValueError(f"repeat: {error}") from None
    if repeat and options.get("conversations_per_scenario") is not None:
        raise ValueError(EXCLUDES)
    return repeat


def _expected_outcome(options: Mapping[str, Any]) -> str:
    text = options.get("expected_outcome")
    return "" if text is None else needed_text(text, "expected_outcome").strip()


def parse_date(value: Any, key: str) -> str | None:
    """The date of a scenario or case. Raises ValueError."""
    if value is None:
        return None
    try:
        return checked_date(value)
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from None


def _knowledge(facts: Any) -> tuple[str, ...]:
    if isinstance(facts, str) or not isinstance(facts, Sequence):
        raise ValueError(f"knowledge: expected a list of texts, found {brief(facts)}")
    return tuple(_knowledge_item(item, f"knowledge[{i}]") for i, item in enumerate(facts))


def _knowledge_item(item: Any, key: str) -> str:
    if isinstance(item, Mapping):
        return needed_text(known_keys(item, ("content",), key).get("content"), f"{key}.content")
    return needed_text(item, key)


PLACEHOLDERS = ("profile", "goal", "knowledge", "date")


def _template(template: Any) -> str | None:
    if template is None:
        return None
    from agentest.support.templates import placeholders

    text = needed_text(template, "user_prompt_template")
    for name in placeholders(text):
        if name not in PLACEHOLDERS:
            raise ValueError(
                f"user_prompt_template: unknown placeholder {{{{{name}}}}}; "
                f"{did_you_mean(name, PLACEHOLDERS)}"
            )
    return text


def _turns(turns: Any) -> tuple[ScriptedTurn, ...]:
    if turns is None:
        return ()
    if isinstance(turns, str) or not isinstance(turns, Sequence):
        raise ValueError(f"turns: expected a list of user messages, found {brief(turns)}")
    if not turns:
        raise ValueError("turns: is empty; give at least one user message")
    return tuple(_turn(item, f"turns[{i}]") for i, item in enumerate(turns))


def _turn(item: Any, key: str) -> ScriptedTurn:
    if isinstance(item, str):
        return ScriptedTurn(item)
    options = known_keys(item, ("user_message", "assertions", "trajectory", "expect"), key)
    if "user_message" not in options:
        raise ValueError(f"{key}.user_message: is missing")
    trajectory = trajectories_of(options, f"{key}.")
    if any(each.max_turns is not None for each in trajectory):
        raise ValueError(f"{key}.trajectory.max_turns: belongs to the scenario, not to one turn")
    expect = parse_expect(options["expect"], f"{key}.expect") if "expect" in options else None
    return ScriptedTurn(checked_text(options["user_message"], f"{key}.user_message"), trajectory, expect)


def trajectories_of(options: Mapping[str, Any], prefix: str = "") -> tuple[Trajectory, ...]:
    values = {name: options[name] for name in ("trajectory", "assertions") if options.get(name) is not None}
    if len(values) > 1:
        raise ValueError(f"{prefix}trajectory: is given twice, as `trajectory` and as `assertions`")
    if "assertions" in values:
        inner = known_keys(values["assertions"], ("tool_calls",), f"{prefix}assertions")
        if "tool_calls" not in inner:
            raise ValueError(f"{prefix}assertions.tool_calls: is missing")
        return parse_trajectories(inner["tool_calls"], f"{prefix}assertions.tool_calls")
    return parse_trajectories(values["trajectory"], f"{prefix}trajectory") if values else ()


def _thresholds(thresholds: Any) -> dict[str, float]:
    if not isinstance(thresholds, Mapping):
        raise ValueError(f"thresholds: expected a dict from metric to number, found {brief(thresholds)}")
    try:
        return normal_thresholds(thresholds)
    except ValueError as error:
        raise ValueError(f"thresholds: {error}") from None


def _metrics(names: Any) -> tuple[str, ...] | None:
    if names is None:
        return None
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise ValueError(f"metrics: expected a list of metric names, found {brief(names)}")
    return tuple(metric_name(needed_text(name, "metrics")) for name in names)


def _tags(tags: Any) -> tuple[str, ...]:
    if isinstance(tags, str) or not isinstance(tags, Sequence):
        raise ValueError(f"tags: expected a list of texts, found {brief(tags)}")
    return tuple(needed_text(tag, "tags") for tag in tags)


def _skip(skip: Any) -> str | None:
    if skip is None or skip is False:
        return None
    return "skip=True" if skip is True else needed_text(skip, "skip")
