"""`agentest judge`: judge conversations of an earlier run again, or recorded sessions, without the agent."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import click

from agentest.cli.location import Location, request_of
from agentest.cli.options import (
    FeatureChoice,
    exits,
    model_option,
    offline_option,
    option,
    output_options,
    spread,
    where,
    which,
)
from agentest.cli.run import run_once
from agentest.cli.run_output import RunVariant, judged_run
from agentest.domain.events import ReportOptions
from agentest.domain.metrics import BUILTIN
from agentest.domain.results import RunResult, ScenarioResult, Status
from agentest.domain.tool_visibility import ToolVisibility
from agentest.domain.transcript import Conversation
from agentest.plugin import PLUGINS, if_command
from agentest.runner.plan import Options, Plan, Unit, make_plan, unrun_result, with_entries
from agentest.runner.prepare import Prepared, RunRequest, configure, prepare, prepared_for
from agentest.scenarios.discovery import DiscoveredScenarios
from agentest.scenarios.model import Scenario
from agentest.store.reader import UnreadableRunError, read_results, usable
from agentest.support.errors import ExitCode, UsageError
from agentest.support.terminal import tell, tell_notes
from agentest.support.text import count, quoted_names

_SESSIONS = "recorded sessions"  # the scenario of sessions that no other scenario judges


def plan_for_finished(
    plan: Plan,
    conversations: Mapping[tuple[str, str], Sequence[Conversation]],
    planned: Mapping[tuple[str, str], int],
) -> tuple[Plan, dict[str, Sequence[Conversation]]]:
    """Return the plan limited to finished conversations, and the conversations by scope.

    A scenario without results is skipped. Conversations whose scenario is no longer defined are reported
    as errored, so that none is ignored. A scenario with fewer conversations than planned is errored,
    unless the finished ones already fail.
    """
    by_scope: dict[str, Sequence[Conversation]] = {}
    entries: list[Unit | ScenarioResult] = []
    left = dict(conversations)
    for entry in plan.entries:
        if not isinstance(entry, Unit):
            entries.append(entry)
            continue
        key = entry.scenario.name, entry.agent
        with_threshold, planned_count = left.pop(key, None), planned.get(key)
        if with_threshold is None:
            entries.append(_without_conversations(entry, planned_count))
        else:
            by_scope[entry.scope] = with_threshold
            entries.append(replace(entry, conversations=len(with_threshold), of=planned_count, repeat=None))
    reported = {entry.name for entry in entries if isinstance(entry, ScenarioResult)}
    text = "the results have conversations of {!r} with agent {!r}, but no scenario defines it"
    undefined = [each for each in left if each[0] not in reported]
    entries += [unrun_result(name, agent, "", 0, text.format(name, agent)) for name, agent in undefined]
    return with_entries(plan, entries, entries), by_scope


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN | TRACES...")
@where
@which
@output_options
@model_option
@offline_option
@spread
@option("--metric metrics", "NAME", "Judge only this metric.", multiple=True)
@option("--sample", "N", "Judge N of the sessions, taken at random.", kind=click.IntRange(min=1))
@option("--seed", "N", "Take the sample by this number (default: 0).", kind=click.IntRange(min=0))
@option(
    "--as form",
    "FORM",
    "Read traces of this form, like langfuse (default: by their keys).",
    kind=FeatureChoice("trace format"),
)
@option("--column columns", "ROLE=NAME", "Read a speaker of traces as user or assistant.", multiple=True)
@exits
def judge(
    location: Location,
    options: Options,
    reports: ReportOptions,
    runs: tuple[str, ...],
    sample: int | None,
    seed: int | None,
    form: str | None,
    columns: tuple[str, ...],
) -> ExitCode:
    """Judge the finished conversations of RUN again, or the sessions of TRACES, without calling the agent.

    RUN is an id (agentest runs) or its beginning, `latest`, a folder, a results.json or a journal.jsonl.
    TRACES are files or folders in the forms of `agentest import`. One --scenario judges them, or the metrics.
    """
    project = location.enter()
    if seed is not None and not sample:
        raise UsageError("--seed chooses the sessions of --sample N: add it")
    request = request_of(project, options, reports)
    paths = [p if (p := project.path(Path(each))).exists() else project.run_file(each) for each in runs]

    def read() -> tuple[list[Conversation], list[str]]:
        conversations, notes = PLUGINS.hook("agentest judge TRACES", "authoring")(paths, form, columns)
        return conversations, notes

    if form or columns or sample or len(runs) > 1:
        return _judge_sessions(request, *read(), sample, seed or 0)
    try:
        path = project.run_file(runs[0])
        earlier = read_results(path)
    except UsageError as error:  # no run, so the file may have sessions
        found, one = None, paths[0]
        is_run = isinstance(error, UnreadableRunError)
        is_run |= one.is_file() and b'"schemaVersion"' in one.read_bytes().replace(b"\0", b"")
        with suppress(UsageError):
            found = None if is_run else read()  # a damaged run is no trace
        if found:
            return _judge_sessions(request, *found, None, 0)
        raise
    return _judge_run(request, path, earlier)


def _judge_run(request: RunRequest, path: Path, earlier: RunResult) -> ExitCode:
    options, prepared = request.options, prepare(request)
    selected = {unit.scenario.name for unit in prepared.plan.units}
    conversations = {
        (each.name, each.agent): tuple(usable(stored.conversation) for stored in each.conversations)
        for each in earlier.scenarios
        if each.conversations
        and (each.name in selected or not options.filtered)
        and options.agent in (None, each.agent)
    }
    planned = {(each.name, each.agent): each.planned for each in earlier.scenarios if each.planned}
    plan, by_scope = plan_for_finished(prepared.plan, conversations, planned)
    if not by_scope:
        hint = if_command("eval", "; it has cases of evaluation sets, which `agentest eval` runs and grades")
        of_sets = any(each.case for each in earlier.scenarios)
        raise UsageError(f"{path} has no conversation of the selected scenarios{hint if of_sets else ''}")
    return _judge_plan(replace(prepared, plan=plan), judged_run(by_scope, earlier.unclaimed))


def _judge_plan(prepared: Prepared, judged: RunVariant) -> ExitCode:
    if requested := prepared.request.options.metrics:
        of_scenarios = (unit.scenario.thresholds for unit in prepared.plan.units)
        names = {*prepared.loaded.config.thresholds, *chain.from_iterable(of_scenarios)}
        if unchecked := ", ".join(sorted(names.intersection(BUILTIN).difference(requested))):
            tell(f"agentest: --metric leaves out {unchecked}, so no threshold on it is checked")
    return run_once(prepared, judged)


def _judge_sessions(
    request: RunRequest,
    conversations: Sequence[Conversation],
    notes: list[str],
    sample: int | None,
    seed: int,
) -> ExitCode:
    sessions = [each for each in conversations if each.session_id is not None]
    if sample and sample < len(sessions):
        notes.append(f"took {sample} of {len(sessions):,} sessions (--seed {seed})")
        chosen = sorted(random.Random(seed).sample(range(len(sessions)), sample))
        # What follows the sessions says what was not read, so it is in every sample.
        conversations = [*map(sessions.__getitem__, chosen), *conversations[len(sessions) :]]
    tell_notes(notes)
    if request.options.filtered:
        prepared = prepare(request)
    else:
        loaded = configure(request)
        made = Scenario(_SESSIONS, str(loaded.path), 0, goal="What the user asks for in the conversation.")
        plan = make_plan(loaded, DiscoveredScenarios((made,)), request.options, request.root)
        prepared = prepared_for(request, loaded, plan)
    names = sorted({unit.scenario.name for unit in prepared.plan.units})
    if len(names) != 1:
        which = f": {quoted_names(names)}" if names else ""
        number = f"{count(len(names), 'scenario')} selected{which}; select one: --scenario =NAME"
        raise UsageError(number if names else prepared.plan.refusals or number)
    unit = _for_sessions(prepared.plan.units[0], len(conversations))
    plan = with_entries(prepared.plan, [unit], [unit])
    numbered = [replace(each, conversation_id=f"{unit.slug}-{n}") for n, each in enumerate(conversations, 1)]
    return _judge_plan(replace(prepared, plan=plan), judged_run({unit.scope: numbered}, ()))


_OF_SESSIONS = (
    *("name", "file", "line", "tags", "agent", "goal", "date", "metrics", "thresholds", "decides"),
    *("trajectory", "expect", "check", "expected_outcome", "criteria", "secrets", "never_checks", "consent"),
)
"""What of a scenario applies to recorded sessions: the rest is about its user, its script and its mocks."""


def _for_sessions(unit: Unit, number: int) -> Unit:
    scenario: Any = {name: getattr(unit.scenario, name) for name in _OF_SESSIONS}
    seen = replace(unit.traits, visibility=ToolVisibility.REPORTED, blind=None, unreported=None)
    return replace(unit, scenario=Scenario(**scenario), traits=seen, conversations=number, repeat=None)


def _without_conversations(unit: Unit, planned: int | None) -> ScenarioResult:
    status, why = Status.SKIPPED, "the results have no conversation of it"
    if planned:
        status, why = Status.ERRORED, f"of {planned} planned conversations, the earlier run finished none"
    name, line = unit.scenario.name, unit.scenario.line
    return unrun_result(name, unit.agent, unit.file, line, why, status=status, planned=planned or 0)
