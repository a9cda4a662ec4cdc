"""The tools of `agentest mcp`: what a coding agent asks about the project, its scenarios and its runs.

A tool takes checked arguments and returns a text for the model and the same facts as structured content. The
project's code runs in other processes only, because it changes while the server is up.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import anyio
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agentest.cli.comparison import compare_runs, format_comparisons
from agentest.cli.location import Project
from agentest.cli.stored_runs import only_named
from agentest.domain.reasons import conversation_passed
from agentest.domain.results import ConversationResult, RunResult, ScenarioResult
from agentest.history.comparison import Change
from agentest.history.comparison_report import conclusion, describe_change, headline
from agentest.plugins.authoring.commands.docs import Documentation
from agentest.plugins.page.server.commands import requested_command
from agentest.plugins.page.server.jobs import Job, Jobs
from agentest.plugins.page.server.json_routes import WebProject
from agentest.plugins.page.server.run_index import WebRuns
from agentest.report.agent import Failures, report_text
from agentest.report.console.scenario import block
from agentest.report.content import RunReport
from agentest.store.reader import read_results
from agentest.support.errors import UsageError
from agentest.support.files import name_problem
from agentest.support.json_text import Json
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.redaction import CredentialFilter
from agentest.support.text import count, did_you_mean, shortened

INSPECTION = (sys.executable, "-B", "-P", "-m", "agentest.plugins.authoring.commands.inspection")
_CHARS_PER_TOKEN = 4
_LOOK_S = 0.25
_MESSAGE_CHARS = 600
_OUTPUT_CHARS = 4_000
_MOST_CHANGES = 50
_UNSAVED = "unsaved.sim.py"
_OFFLINE_NOTE = "No model was called: simulated users followed their rules, and judged metrics were skipped."

Report = Callable[[float, float | None, str], Awaitable[None]]
"""Receives the progress of a call: done, total if it is known, and a message."""
MaxTokens = Annotated[int, Field(ge=200, le=20_000, description="Return at most this many tokens.")]
RunName = Annotated[str, Field(description="Run: an id, the beginning of one, or `latest`.", min_length=1)]


class ToolCallArguments(BaseModel):
    """Arguments of a tool. Clients see its docstring, and the schema that is made from the fields."""

    model_config = ConfigDict(extra="forbid", strict=True)


class ListCall(ToolCallArguments):
    """List the scenarios with file, line, tags and kind, and files that do not load."""

    contains: str = Field("", description="List only scenarios with this text in name, file or tags.")
    max_tokens: MaxTokens = 2_000


class ValidateCall(ToolCallArguments):
    """Check the source of a scenario file without saving or running it.

    Returns every mistake with its line, and the scenarios that the source defines. The source is imported.
    """

    source: str = Field(description="Source of a scenario file (*.sim.py). It is not saved.", min_length=1)
    path: str = Field(
        _UNSAVED,
        description="Where you will save it, relative to the configuration; decides what it can import.",
    )


class RunCall(ToolCallArguments):
    """Run scenarios against the agent and return what did not pass.

    Offline unless `spend` is true: no user or judge model is called. The agent itself is always called, with
    whatever model it uses. Sends progress; can be cancelled, and keeps what has finished.
    """

    paths: list[str] = Field(
        default_factory=list, description="Run these: PATH, PATH:LINE or PATH::NAME (default: all)."
    )
    scenarios: list[str] = Field(
        default_factory=list, description="Select scenarios by a part of the name; `=NAME`: the whole name."
    )
    tags: list[str] = Field(default_factory=list, description="Select scenarios with one of these tags.")
    agent: str | None = Field(None, description="Test this agent of the configuration.")
    last_failed: bool = Field(False, description="Select scenarios that failed or errored last time.")
    conversations: int | None = Field(None, ge=1, le=1_000, description="Conversations per scenario.")
    spend: bool = Field(
        False,
        description="Allow calls of the configured models of user and judges, which cost money. "
        "Without it the run is offline.",
    )
    max_cost: float | None = Field(
        None, gt=0, le=10_000, description="Stop before models cost more USD than this. Needs `spend`."
    )
    max_llm_calls: int | None = Field(
        None, ge=0, description="Stop after this many model calls. Needs `spend`."
    )
    max_tokens: MaxTokens = 2_000


class ResultsCall(ToolCallArguments):
    """Return the scenarios of a stored run that did not pass: what was expected, what happened, the turn, the
    likely cause, and the command that repeats it.
    """

    run: RunName = "latest"
    scenarios: list[str] = Field(
        default_factory=list,
        description="Only scenarios with this part of the name; `=NAME`: the whole name.",
    )
    max_tokens: MaxTokens = 2_000


class ConversationCall(ToolCallArguments):
    """Return one conversation of a stored run, with calls, checks and judgements; name `scenario` or `id`."""

    scenario: str | None = Field(None, description="Name of the scenario (default: that of `id`).")
    id: str | None = Field(None, description="Id of the conversation (default: the first that did not pass).")
    agent: str | None = Field(None, description="Agent, if the run has several.")
    run: RunName = "latest"
    max_tokens: MaxTokens = 4_000


class TalkCall(ToolCallArguments):
    """Send the agent one message, with the mocks of a scenario, and return its reply and its tool calls.

    The agent itself is called, with whatever model it uses. The message `/quit` ends the conversation.
    """

    message: str = Field(description="Text of the user's message.", min_length=1)
    conversation: str | None = Field(None, description="Go on with this conversation (default: begin one).")
    scenario: str | None = Field(
        None, description="Begin one with this scenario: a part of its name; `=NAME`: the whole name."
    )


class CompareCall(ToolCallArguments):
    """Compare two stored runs: what regressed, what improved, what is noise."""

    base: str | None = Field(None, description="Earlier run (default: the run before the latest).")
    new: str | None = Field(None, description="Later run (default: the latest).")
    max_tokens: MaxTokens = 2_000


class ExplainCall(ToolCallArguments):
    """Explain the configuration: its settings and defaults, the agents and whether their tool calls can be
    seen, the models, and what keeps a run from starting.
    """

    key: str | None = Field(None, description="Explain only this key, such as `thresholds`.")


@dataclass(frozen=True, slots=True)
class AnsweredCall:
    """The answer of a tool: a text for the model, and structured content."""

    text: str
    content: Json
    failed: bool = False


@dataclass(frozen=True, slots=True)
class ProjectTool:
    """A tool: its arguments, which describe it to clients, and the function that answers."""

    arguments: type[ToolCallArguments]
    answer: Callable[[Any, Report], Awaitable[AnsweredCall]]
    read_only: bool = True

    def entry(self, name: str) -> Json:
        """Return the tool as in `tools/list`."""
        schema = self.arguments.model_json_schema()
        about = " ".join(schema.pop("description").split())
        hints = {
            "readOnlyHint": self.read_only,
            "destructiveHint": False,
            "openWorldHint": not self.read_only,
        }
        return {"name": name, "description": about, "inputSchema": schema, "annotations": hints}


class ProjectTools:
    """The tools for one project.

    Args:
        project: where commands work.
        jobs: starts other processes.
    """

    def __init__(self, project: Project, jobs: Jobs, web: WebProject) -> None:
        self._project = project
        self._jobs = jobs
        self._web = web
        self._runs = WebRuns(web)
        self.tools: Mapping[str, ProjectTool] = {
            "list_scenarios": ProjectTool(ListCall, self._list),
            "validate_scenario": ProjectTool(ValidateCall, self._validate),
            "run": ProjectTool(RunCall, self._run, read_only=False),
            "results": ProjectTool(ResultsCall, self._results),
            "conversation": ProjectTool(ConversationCall, self._conversation),
            "compare": ProjectTool(CompareCall, self._compare),
            "talk": ProjectTool(TalkCall, self._talk, read_only=False),
            "explain_config": ProjectTool(ExplainCall, self._explain),
        }

    def close(self) -> None:
        """End reads in progress."""
        self._runs.close()

    async def call(self, name: str, arguments: Any, report: Report) -> AnsweredCall:
        """Return the answer of a tool. Problems that its caller can solve are answers, too.

        Raises LookupError for an unknown tool.
        """
        tool = self.tools.get(name)
        if tool is None:
            raise LookupError(f"there is no tool {name!r}; {did_you_mean(name, self.tools)}")
        try:
            return await tool.answer(tool.arguments.model_validate(arguments), report)
        except ValidationError as error:
            return _failed("\n".join(_argument_problems(error, tool.arguments)))
        except (UsageError, OSError) as error:
            return _failed(str(error))

    async def _list(self, wanted: ListCall, _: Report) -> AnsweredCall:
        found = await self._jobs.listing()
        if found["error"]:
            return _failed(found["error"])
        rows = [each for each in found["scenarios"] if _contains(each, wanted.contains)]
        problems = [each for each in found["problems"] if _contains({**each, "tags": []}, wanted.contains)]
        texts = [f"{each['file']}:{each['line']}: {_short(each['message'])}" for each in problems]
        texts += [_row(each) for each in rows]
        shown, text = _fitting(texts, wanted.max_tokens, "row")
        listed = rows[: max(0, shown - len(problems))]
        content = {"scenarios": listed, "problems": problems[:shown], "agents": found["agents"]}
        left_out = len(texts) - shown
        return AnsweredCall(
            text or "No scenario was found: no file that `include` matches calls scenario(…).",
            {**content, "leftOut": left_out},
        )

    async def _validate(self, wanted: ValidateCall, _: Report) -> AnsweredCall:
        root = self._project.root.resolve()
        if name_problem(wanted.path) or not (root / wanted.path).resolve().is_relative_to(root):
            return _failed(f"`path`: {wanted.path[:200]!r} is not in the project's folder, {root}")
        if not wanted.path.endswith(".py"):
            return _failed("`path`: expected a file that `include` matches, such as scenarios/a.sim.py")
        found = await self._inspected({"path": wanted.path, "source": wanted.source})
        if found["valid"]:
            names = "\n".join(f"line {each['line']}: {each['name']}" for each in found["scenarios"])
            return AnsweredCall(f"valid: {count(len(found['scenarios']), 'scenario')}\n{names}", found)
        rows = [f"{found['path']}:{each['line']}: {each['message']}" for each in found["problems"]]
        return AnsweredCall(f"{count(len(rows), 'problem')}:\n" + "\n".join(rows), found)

    async def _explain(self, wanted: ExplainCall, _: Report) -> AnsweredCall:
        found = await self._inspected({})
        known = {**found["defaults"], **found["settings"]}
        if wanted.key is not None:
            if wanted.key not in known:
                return _failed(f"unknown key {wanted.key!r}; {did_you_mean(wanted.key, known)}")
            origin = found["file"] if wanted.key in found["settings"] else "default"
            value = known[wanted.key]
            meaning = Documentation().key_meaning(wanted.key)
            text = f"{wanted.key}: {json.dumps(value, ensure_ascii=False)} ({origin})"
            text += f"\ndocumentation: {meaning}" if meaning else ""
            return AnsweredCall(text, {"key": wanted.key, "value": value, "origin": origin})
        return AnsweredCall("\n".join(_config_rows(found)), found)

    async def _run(self, wanted: RunCall, report: Report) -> AnsweredCall:
        limits = {"--max-cost": wanted.max_cost, "--max-llm-calls": wanted.max_llm_calls}
        if not wanted.spend and any(value is not None for value in limits.values()):
            return _failed(
                "`max_cost` and `max_llm_calls` limit what models cost: set `spend` to true as well"
            )
        chosen: Json = {"kind": "run", "paths": wanted.paths, "offline": not wanted.spend}
        chosen |= {"agent": wanted.agent} if wanted.agent else {}
        chosen |= {"conversations": wanted.conversations} if wanted.conversations else {}
        command = requested_command(chosen, self._web, self._runs)
        more = [f"--scenario={text}" for text in wanted.scenarios] + [f"--tag={tag}" for tag in wanted.tags]
        more += ["--last-failed"] if wanted.last_failed else []
        more += [f"{option}={value:g}" for option, value in limits.items() if value is not None]
        command = replace(command, options=(*command.options, *more, "--reporter=agent"))
        job = await self._finished(self._jobs.start(command), report)
        if job.run is None:
            return _failed(job.output.text[-_OUTPUT_CHARS:].strip() or "the run did not start")
        path = await asyncio.to_thread(self._project.run_file, job.run)
        text, content = await asyncio.to_thread(_failures, path, job.run, (), wanted.max_tokens)
        notes = [] if wanted.spend else [_OFFLINE_NOTE]
        return AnsweredCall(
            "\n".join([text, *notes]), {**content, "offline": not wanted.spend, "exitStatus": job.status}
        )

    async def _results(self, wanted: ResultsCall, _: Report) -> AnsweredCall:
        path = self._run_file(wanted.run)
        run = path.parent.name if path.parent.parent.name == "runs" else str(path)
        text, content = await asyncio.to_thread(
            _failures, path, run, tuple(wanted.scenarios), wanted.max_tokens
        )
        return AnsweredCall(text, content)

    async def _conversation(self, wanted: ConversationCall, _: Report) -> AnsweredCall:
        result = await asyncio.to_thread(read_results, self._run_file(wanted.run))
        scenario = _one_scenario(result, wanted)
        conversation = _one_conversation(scenario, wanted.id)
        scenario, conversation = CredentialFilter()((scenario, conversation))
        id = conversation.conversation.conversation_id
        text = block(replace(scenario, conversations=(conversation,)), verbose=True)
        most = wanted.max_tokens * _CHARS_PER_TOKEN
        is_cut = len(text) > most
        command = f"agentest show {wanted.run} --scenario '={scenario.name}' --verbose"
        shown = f"{text[:most]}\n… cut: raise max_tokens, or {command}" if is_cut else text
        reasons = [each for each in scenario.verdict.reasons if each.conversation_id == id]
        content = {
            "scenario": scenario.name,
            "agent": scenario.agent,
            "conversationId": id,
            "passed": conversation_passed(conversation),
            "endedBy": str(conversation.conversation.ending),
            "turns": len(conversation.conversation.turns),
            "reasons": [{"message": _short(each.message), "turnIndex": each.turn_index} for each in reasons],
            "conversations": [each.conversation.conversation_id for each in scenario.conversations][:100],
            "cut": is_cut,
        }
        return AnsweredCall(shown, content)

    async def _talk(self, wanted: TalkCall, _: Report) -> AnsweredCall:
        words = [f"--send={wanted.message}", "--json"]
        words += [f"--conversation={wanted.conversation}"] if wanted.conversation else []
        words += [f"--scenario={wanted.scenario}"] if wanted.scenario else []
        words += [f"--config={self._web.config}"] if self._web.config else []
        command = (sys.executable, "-m", "agentest", "chat", *words)
        run = partial(subprocess.run, command, cwd=self._project.root, capture_output=True, text=True)
        done = await asyncio.to_thread(run, stdin=subprocess.DEVNULL, check=False)
        if not done.stdout:
            return _failed(done.stderr.strip().removeprefix("agentest: "))
        content = json.loads(done.stdout)
        rows = [f"tool   {call['text']} → {call['result']!r}" for call in content["calls"]]
        rows += [f"agent  {content['reply']}"] if content["reply"] is not None else []
        rows += [f"ended: {content['error'] or content['ended']}"] if content["ended"] else []
        return AnsweredCall("\n".join([*content["notes"], *rows]), content, failed=bool(content["error"]))

    async def _compare(self, wanted: CompareCall, _: Report) -> AnsweredCall:
        for reference in filter(None, (wanted.base, wanted.new)):
            self._run_file(reference)
        comparison = await asyncio.to_thread(compare_runs, wanted.base, wanted.new, self._project)
        text = format_comparisons([comparison], "console", several=False)
        changed = [each for each in comparison.scenarios if each.change is not Change.UNCHANGED]
        rows = [
            {
                "scenario": each.pair.latest.name,
                "agent": each.pair.latest.agent,
                "change": str(each.change),
                "description": describe_change(each),
            }
            for each in changed[:_MOST_CHANGES]
        ]
        content = {
            "base": comparison.base.label,
            "new": comparison.new.label,
            "regressed": comparison.regressed,
            "headline": headline(comparison),
            "conclusion": conclusion(comparison),
            "changes": rows,
            "leftOut": len(changed) - len(rows),
        }
        return AnsweredCall(_fitting(text.rstrip().splitlines(), wanted.max_tokens, "row")[1], content)

    def _run_file(self, reference: str) -> Path:
        if name_problem(reference):
            raise UsageError(
                f"{reference[:200]!r} is not a run: expected an id of `agentest runs`, or `latest`"
            )
        path = self._project.run_file(reference)
        folders = (self._project.root.resolve(), self._project.output_dir.resolve())
        if not any(path.resolve().is_relative_to(folder) for folder in folders):
            raise UsageError(f"{reference[:200]!r} is not in the project's folder, {folders[0]}")
        return path

    async def _inspected(self, wanted: Json) -> Json:
        config = self._web.config
        request = {"root": str(self._project.root), "config": str(config) if config else None, **wanted}
        found, ended = await self._jobs.result_of(INSPECTION, json.dumps(request))
        if found is None:
            raise UsageError(f"the project's code ended the process that checks it {ended}")
        if "error" in found:
            raise UsageError(found["error"])
        return found

    async def _finished(self, job: Job, report: Report) -> Job:
        assert job.task is not None
        sent, ended = (-1, -1), False
        try:
            while not ended:
                ended = bool((await asyncio.wait({job.task}, timeout=_LOOK_S))[0])
                done = await asyncio.to_thread(self._progress, job)
                if done and done != sent:
                    sent = done
                    await report(done[0], done[1] or None, f"{done[0]} of {done[1]} conversations finished")
        except asyncio.CancelledError:
            self._jobs.stop(job)
            with anyio.CancelScope(shield=True):
                await asyncio.wait({job.task})
            raise
        return job

    def _progress(self, job: Job) -> tuple[int, int] | None:
        if job.run is None:
            return None
        with suppress(UsageError):
            index = self._runs.index(self._runs.find(job.run))
            if index:
                with index.lock:
                    scenarios = index.scenarios.values()
                    finished = sum(each.numbers.conversations for each in scenarios)
                    return finished, sum(each.planned for each in scenarios)
        return None


def _failures(path: Path, run: str, names: Sequence[str], max_tokens: int) -> tuple[str, Json]:
    result = CredentialFilter()(only_named(read_results(path), names, "the run"))
    failures = Failures()
    for scenario in result.scenarios:
        failures.add(scenario)
    report = RunReport(result)
    most = max_tokens * _CHARS_PER_TOKEN
    blocks = failures.blocks(report, most)
    text, number = report_text(report, blocks, run, most)
    content = {
        "run": run,
        "status": str(report.status),
        "counts": {words: number for number, words, _ in report.counts},
        "failures": [{**asdict(each), "status": str(each.status)} for each in blocks[:number]],
        "leftOut": len(blocks) - number,
    }
    return text, content


def _one_scenario(result: RunResult, wanted: ConversationCall) -> ScenarioResult:
    if wanted.scenario is None:
        ids = {c.conversation.conversation_id: each for each in result.scenarios for c in each.conversations}
        if wanted.id not in ids:
            problem = f"the run has no conversation {wanted.id!r}" if wanted.id else "name `scenario` or `id`"
            raise UsageError(f"{problem}; {did_you_mean(wanted.id or '', list(ids)[:20])}")
        return ids[wanted.id]
    named = [each for each in result.scenarios if each.name == wanted.scenario]
    if not named:
        names = [each.name for each in result.scenarios][:20]
        raise UsageError(
            f"the run has no scenario {wanted.scenario!r}; {did_you_mean(wanted.scenario, names)}"
        )
    found = [each for each in named if wanted.agent in (None, each.agent)]
    if not found:
        agents = [each.agent for each in named]
        raise UsageError(
            f"the agent {wanted.agent!r} did not run it; {did_you_mean(wanted.agent or '', agents)}"
        )
    return next((each for each in found if not each.verdict.passed), found[0])


def _one_conversation(scenario: ScenarioResult, id: str | None) -> ConversationResult:
    every = {each.conversation.conversation_id: each for each in scenario.conversations}
    if not every:
        reason = scenario.verdict.reasons[0].message if scenario.verdict.reasons else "it did not run"
        raise UsageError(f"{scenario.name!r} has no conversation: {_short(reason)}")
    if id is not None and id not in every:
        raise UsageError(
            f"{scenario.name!r} has no conversation {id!r}; {did_you_mean(id, list(every)[:20])}"
        )
    blamed = [each.conversation_id for each in scenario.verdict.reasons if each.conversation_id in every]
    failed = [key for key, each in every.items() if not conversation_passed(each)]
    return every[id or next(iter([*blamed, *failed, *every]))]


def _failed(message: str) -> AnsweredCall:
    return AnsweredCall(message, {"error": message}, failed=True)


def _argument_problems(error: ValidationError, arguments: type[ToolCallArguments]) -> list[str]:
    rows = []
    for each in error.errors(include_url=False):
        name = ".".join(map(str, each["loc"])) or "arguments"
        if each["type"] == "extra_forbidden":
            rows.append(f"unknown argument `{name}`; {did_you_mean(name, arguments.model_fields)}")
        elif each["type"] == "missing":
            rows.append(f"the argument `{name}` is missing: {arguments.model_fields[name].description}")
        else:
            rows.append(f"`{name}`: {each['msg']}, found {each['input']!r:.100}")
    return rows


def _contains(row: Json, text: str) -> bool:
    texts = [row["name"], row["file"], *row["tags"]]
    return any(text.casefold() in each.casefold() for each in texts)


def _row(scenario: Json) -> str:
    tags = f"  [{', '.join(scenario['tags'])}]" if scenario["tags"] else ""
    kind = f"{scenario['kind']} × {scenario['conversations']}"
    return f"{scenario['file']}:{scenario['line']}  {scenario['name']}  {kind}{tags}"


def _config_rows(found: Json) -> list[str]:
    rows = [f"{found['file']} sets:"]
    rows += [f"  {key}: {json.dumps(value, ensure_ascii=False)}" for key, value in found["settings"].items()]
    rows.append(f"defaults: {', '.join(found['defaults'])}")
    for agent in found["agents"]:
        rows.append(f"agent {agent['name']} ({agent['type']}, {agent['address']}): calls {agent['calls']}")
        rows += [f"  {agent['advice']}"] if agent["advice"] else []
    models = {role: name for role, name in found["models"].items() if name}
    rows.append(f"models: {models or 'none, so runs are offline'}")
    return rows + [f"problem: {each}" for each in found["problems"]]


def _fitting(rows: Sequence[str], max_tokens: int, noun: str) -> tuple[int, str]:
    left, shown = max_tokens * _CHARS_PER_TOKEN, 0
    for row in rows:
        left -= len(row) + 1
        if left < 0:
            break
        shown += 1
    more = len(rows) - shown
    note = [f"… {count(more, f'more {noun}')}: raise max_tokens, or select less"] if more else []
    return shown, "\n".join([*rows[:shown], *note])


def _short(text: str) -> str:
    return shortened(text, _MESSAGE_CHARS)
