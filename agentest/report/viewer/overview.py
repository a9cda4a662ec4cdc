"""What the page knows of a run before anything in it is opened: numbers and one row for each scenario.

It is made of the JSON of results.json and of the journal, so that a report, a finished run and one that is
under way have one way. Ten thousand scenarios are looked through at once: a row holds what is filtered,
sorted and shown in the list, and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from agentest.report.viewer.figures import figures, margin
from agentest.support.json_text import Json
from agentest.support.text import shortened

_SHOWN_CHARS = 240
_COUNTED_IN = ("intervals", "skippedMetrics")
"""What rows bring for the figures of the run; the list does not show it."""
_SIDES = re.compile(r"\n(?:expected \(|forbidden: |actual: )")
_HOLDING = ("matched", "free")


def brief(conversation: Json) -> Json:
    """A conversation in one row.

    Args:
        conversation: as in results.json.
    """
    turns = conversation["turns"]
    every = [*turns, *filter(None, [conversation["unfinishedTurn"]])]
    time = conversation.get("time") or {}
    return {
        "conversationId": conversation["conversationId"],
        "passed": conversation["passed"],
        "endedBy": conversation["endedBy"],
        "errorSource": conversation["errorSource"],
        "turns": len(every),
        "toolCalls": sum(len(turn["toolCalls"]) for turn in every),
        "agentMs": round(sum(turn["latencyMs"] for turn in turns), 3),
        "totalMs": time.get("totalMs"),
        "first": _short(every[0]["userMessage"]) if every else "",
        "broke": broken_turn(conversation),
        "why": _short(_why(conversation)),
        **({"invalid": _short(conversation["invalid"])} if conversation.get("invalid") else {}),
    }


def broken_turn(conversation: Json) -> int | None:
    """The first turn to look at; None: nothing points at one."""
    found = [
        *(failure["turnIndex"] for failure in conversation["labelledFailures"]),
        *(
            criterion["turnIndex"]
            for criterion in conversation.get("criteria", ())
            if criterion["result"] == "violated"
        ),
        *(index for index, _ in _mismatches(conversation)),
        *_wrong_calls(conversation),
        *(check["turnIndex"] for check in _failed_checks(conversation) if "turnIndex" in check),
        *(
            scores["turnIndex"]
            for scores in conversation["evaluation"]["turnEvaluations"]
            if not all(check["passed"] for check in scores["checks"])
        ),
    ]
    if unfinished := conversation["unfinishedTurn"]:
        found.append(unfinished["turnIndex"])
    return min((index for index in found if index is not None), default=None)


def _mismatches(conversation: Json) -> Iterator[tuple[int | None, Json]]:
    """Turn and trajectory where calls are not as they must be: of turns first, then (None) of the whole."""
    held = [(each["turnIndex"], each) for each in conversation["perTurnTrajectory"]]
    for index, trajectory in (*held, (None, conversation["trajectory"])):
        for part in (trajectory.get("parts") or (trajectory,)) if trajectory else ():
            if part["matched"] is not True and not part.get("counted"):
                yield index, part


def _failed_checks(conversation: Json) -> list[Json]:
    """Those of the whole conversation."""
    return [check for check in conversation.get("checks", ()) if not check["passed"]]


def _wrong_calls(conversation: Json) -> Iterator[int]:
    """The turns of calls that the trajectories of the whole conversation did not expect so."""
    turns = [*conversation["turns"], *filter(None, [conversation["unfinishedTurn"]])]
    made = [turn["turnIndex"] for turn in turns for _ in turn["toolCalls"]]
    rows = (
        row for index, part in _mismatches(conversation) if index is None for row in part.get("alignment", ())
    )
    for row in rows:
        place = row.get("call")
        if place is not None and place < len(made) and row["status"] not in _HOLDING:
            yield made[place]


def _told(trajectory: Json) -> str:
    """Why a trajectory does not hold: what differs, without both sides, which are shown elsewhere."""
    rows = trajectory.get("alignment", ())
    differences = [
        f"{row['expected'].partition('(')[0]}: {row['difference']}"
        for row in rows
        if row["status"] == "different" and row.get("difference")
    ]
    return "; ".join([without_sides(trajectory["reason"]), *differences])


def without_sides(reason: str) -> str:
    """A trajectory's reason up to where it lists what was expected and what came."""
    return _SIDES.split(reason, maxsplit=1)[0]


def _why(conversation: Json) -> str:
    """What speaks against a conversation first; "": nothing."""
    if conversation["error"]:
        return str(conversation["error"])
    for _, trajectory in _mismatches(conversation):
        name = f"{trajectory['name']}: " if trajectory.get("name") else ""
        return name + _told(trajectory)
    for scores in conversation["evaluation"]["turnEvaluations"]:
        for check in scores["checks"]:
            if not check["passed"]:
                return f"{check['check']}: {check['reason']}"
    for check in _failed_checks(conversation):
        return f"{check['check']}: {check['reason']}"
    for criterion in conversation.get("criteria", ()):
        if criterion["result"] != "met":
            return f"{criterion['text']}: {criterion['reason']}"
    goal = conversation["evaluation"].get("goalCompletion") or {}
    if goal.get("value") == 0:
        return f"goal {goal.get('outcome', 'not reached')}: {goal['reason']}"
    for failure in conversation["labelledFailures"]:
        return f"{failure['metric']}: {failure['label']}. {failure['reason']}"
    return ""


def scenario_row(scenario: Json, rows: Sequence[Json]) -> Json:
    """A scenario in one row.

    Args:
        scenario: as in results.json; its conversations are not looked at.
        rows: what `brief` says of them.
    """
    usage = scenario["usage"].values()
    costs = [role["cost"] for role in usage]
    return {
        **{key: scenario[key] for key in ("name", "agent", "file", "line", "tags", "status", "averages")},
        "passed": sum(row["passed"] for row in rows),
        "conversations": len(rows),
        "planned": scenario.get("plannedConversations", len(rows)),
        **{key: scenario[key] for key in ("passRate", "flaky", "evalSetId", "evalId") if key in scenario},
        "turns": sum(row["turns"] for row in rows),
        "agentMs": round(sum(row["agentMs"] for row in rows), 3),
        "durationMs": scenario["durationMs"],
        "cost": None if None in costs else round(sum(costs), 6),
        "failure": _short(_first_failure(scenario, rows)),
        "failures": len(scenario["failures"]),
        "metrics": failed_metrics(scenario),
        "warnings": sum(len(scenario.get(key, ())) for key in ("warnings", "verdictWarnings")),
        **_if_set(scenario, ("thresholds", *_COUNTED_IN)),
        **_margin(scenario),
        **{
            name: True
            for name, holds in (("unfinished", _unfinished), ("broken", _broken))
            if holds(scenario)
        },
    }


def _first_failure(scenario: Json, rows: Sequence[Json]) -> str:
    """What the scenario failed for first, as its conversation tells it where that says more."""
    kind, colon, reason = without_sides(next(iter(scenario["failures"]), "")).partition(": ")
    longer = (row["why"] for row in rows if reason and row["why"].startswith(f"{reason}; "))
    return f"{kind}{colon}{next(longer, reason)}"


def _if_set(scenario: Json, keys: Iterable[str]) -> Json:
    return {key: scenario[key] for key in keys if scenario.get(key)}


def _margin(scenario: Json) -> Json:
    found = margin(scenario["averages"], scenario["thresholds"])
    return {} if found is None else {"margin": round(found, 4)}


def _unfinished(scenario: Json) -> bool:
    """Whether nothing but the early end of the run keeps it from a verdict."""
    kinds = {reason["kind"] for reason in scenario.get("reasons", ())}
    return scenario["status"] in ("errored", "skipped") and kinds == {"interrupted"}


def _broken(scenario: Json) -> bool:
    """Whether it stands for a file that did not load."""
    return any(reason["kind"] == "file" for reason in scenario.get("reasons", ()))


def failed_metrics(scenario: Json) -> list[str]:
    """The metrics that speak against a scenario."""
    return list(
        dict.fromkeys(reason["metric"] for reason in scenario.get("reasons", ()) if "metric" in reason)
    )


def overview(
    *,
    run: Json,
    head: Json | None,
    scenarios: Sequence[Json],
    root_causes: Sequence[Json],
    trend: Sequence[Json] = (),
    left_out: int = 0,
    **more: Any,
) -> Json:
    """All of it.

    Args:
        run: what the run is called: `id`, `state`, and what run.json has.
        head: results.json without its scenarios; None: the run has not ended.
        scenarios: of `scenario_row`.
        root_causes: `rootCauses` of results.json, or what is known of them so far.
        trend: what run.json has of earlier runs, the latest last.
        left_out: of how many conversations there is no transcript, as there was no room for it.
        more: what one coat alone knows.
    """
    shown = [{key: row[key] for key in row if key not in _COUNTED_IN} for row in scenarios]
    return {
        "run": run,
        "head": head,
        "figures": figures(scenarios),
        "scenarios": shown,
        "causes": root_causes,
        "trend": trend,
        "leftOut": left_out,
        **more,
    }


def _short(text: str) -> str:
    return shortened(text, _SHOWN_CHARS)
