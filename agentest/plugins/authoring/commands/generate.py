"""`agentest generate`: write scenarios for the rules and tools of an agent, and keep those that work."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import click

from agentest.cli.listing import broken, report_load_errors
from agentest.cli.location import Location, Project
from agentest.cli.options import exits, flag, model_option, offline_option, option, path_option, where, which
from agentest.cli.requests import request_of
from agentest.domain.events import Event, Noted
from agentest.domain.results import RunResult, ScenarioResult, Status
from agentest.domain.transcript import Blame, call_text
from agentest.plugins.authoring.generated_wording import calls_at_most, find_rules, word
from agentest.plugins.authoring.generation import (
    SAME,
    Case,
    Material,
    cases_of,
    choose,
    failed_scripts,
    fingerprint,
    free_path,
    gather_seeds,
    has_failing_mock,
    nearest,
    recorded_answers,
    source_of,
)
from agentest.plugins.authoring.policies import Policy, read_policies
from agentest.plugins.authoring.tool_matrix import ToolGoal
from agentest.runner.environment import output_dir
from agentest.runner.plan import Options, agents_under_test, make_plan
from agentest.runner.prepare import Prepared, ReportOptions, prepare, prepared_for
from agentest.runner.tools import KnownTool, agent_traits, joined_tools, mock_server_tools_of, tools_of_unit
from agentest.scenarios.discovery import DiscoveredScenarios, discover_file
from agentest.scenarios.model import Scenario
from agentest.scenarios.variations import base_mocks
from agentest.store.reader import read_results
from agentest.store.runs.folder import RunKind, latest_run
from agentest.support.errors import ExitCode, ModelError, UsageError
from agentest.support.files import path_from, read_text_file, write_atomically
from agentest.support.importing import Imports
from agentest.support.interrupts import run_event_loop
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.terminal import clean, say, tell
from agentest.support.text import count, did_you_mean, shortened

SOURCES = ("instructions", "tools", "docs", "failures")
_OUTPUT = Path("scenarios/generated.sim.py")
_SHOWN = 160
_MOST_FAILED = 5
"""Failed scripts whose edges are searched: each takes up to some dozen conversations."""
_INSTRUCTIONS_FILE = re.compile(r"""instructions_?[fF]ile["']?\s*[:=]\s*["']?([^"'\n,}]+)""")
_UNUSABLE = (
    "no scenario was written: without a model, a rule needs a tool that it is about; give `agent.tools`, "
    "or a model with --model"
)
_MISSING = (
    "nothing can be generated: no rule was found and no tool is known. Give `agent.instructions`, "
    "`agent.tools`, or documents with --docs PATH; a run with mocks shows tools, too"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateOptions:
    """The options that only `agentest generate` has."""

    sources: str | None = None
    docs: tuple[str, ...] = ()
    most: int | None = None
    """The most scenarios; None: 20."""
    output: Path | None = None
    seed: int = 0
    no_run: bool = False


@click.command()
@click.argument("targets", nargs=-1, metavar="[PATH | PATH:LINE | PATH::NAME]…")
@where
@which
@option("--from sources", "SOURCES", "Use only these: instructions, tools, docs, failures.")
@option("--docs", "PATH", "Read rules in this .md or .txt file, or folder; repeat it.", multiple=True)
@option("--count most", "N", "Generate at most N scenarios (default: 20).", kind=click.IntRange(min=1))
@path_option("--output", "Write to this file (default: scenarios/generated.sim.py).")
@flag("--dry-run", "Show what would be generated, and the most model calls.")
@model_option
@offline_option
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, metavar="N", help="Pair tools and users differently."
)
@flag("--no-run", "Write all scenarios without running them.")
@exits
def generate(
    location: Location,
    options: Options,
    generating: GenerateOptions,
    targets: tuple[str, ...],
) -> ExitCode:
    """Write scenarios for the rules in the agent's instructions and for its tools.

    Each limit is tested at its edge, one below and one above. Each scenario runs once and is kept only if it
    works and is new. The selection says which scenarios to learn from.

    Exit status: 0 a scenario was written; 2 nothing could be generated; 130 interrupted.
    """
    project = location.enter()
    wanted, docs = _sources(generating.sources), generating.docs
    path = project.path(generating.output) if generating.output else project.root / _OUTPUT
    if not path.name.endswith(".sim.py"):
        raise UsageError(f"--output: {path.name} would not be found; its name must end in .sim.py")
    request = request_of(project, options, ReportOptions(), targets)
    prepared = prepare(request, may_be_empty=True)
    report_load_errors(broken(prepared))
    everything = prepared
    if options.filtered or targets:  # what is new is new to all scenarios
        everything = prepare(request_of(project, Options(offline=True)), may_be_empty=True)
    wanted += ("docs",) if docs else ()
    known = gather(prepared, everything, wanted, [project.path(Path(each)) for each in docs])
    most, seed = generating.most or 20, generating.seed
    work = Generation(prepared, known, free_path(path), most, seed, "tools" in wanted)
    if options.dry_run:
        return work.show_plan()
    return work.write(project, runs=not generating.no_run)


def _sources(text: str | None) -> tuple[str, ...]:
    names = [each.strip() for each in text.split(",") if each.strip()] if text else SOURCES[:3]
    for name in names:
        if name not in SOURCES:
            raise UsageError(f"--from: there is no source {name!r}; {did_you_mean(name, SOURCES)}")
    return tuple(names)


class AgentKnowledge(NamedTuple):
    """What is known about the agent, and the texts with its rules by source."""

    material: Material
    texts: dict[str, tuple[str, int]]
    """Source → text, and the line in which it begins."""
    notes: list[str]


def gather(
    prepared: Prepared, everything: Prepared, sources: Sequence[str], docs: Sequence[Path]
) -> AgentKnowledge:
    """Collect instructions, documents, tools, and what earlier runs recorded.

    Args:
        prepared: the scenarios to learn from.
        everything: all scenarios, which generated ones must differ from.
    """
    config, root, redact = prepared.loaded.config, prepared.request.root, prepared.loaded.redact
    scenarios, existing = (
        list({unit.scenario.name: unit.scenario for unit in each.plan.units}.values())
        for each in (prepared, everything)
    )
    names, agents = agents_under_test(config, prepared.request.options.agent)
    agent = agents[names[0]]
    traits = agent_traits(names[0], agent, mock_server_tools_of(agent.mock_servers, scenarios, root))
    folder = output_dir(prepared)
    latest = latest_run(folder, (RunKind.RUN, RunKind.MERGE))
    runs = [read_results(latest.file)] if latest and latest.file else []
    answers, args = recorded_answers(runs)
    failing_first = sorted(scenarios, key=has_failing_mock, reverse=True)
    mocks = {name: mock for each in failing_first for name, mock in base_mocks(each).items()}
    described = {tool.name: tool.description or "" for tool in traits.tools.configured or ()}
    tools = joined_tools([tools_of_unit(traits.tools, mocks), [KnownTool(name=name) for name in answers]])
    goals = [
        ToolGoal(
            tool=replace(tool, description=tool.description or described.get(tool.name, "")),
            recorded=args.get(tool.name, {}),
        )
        for tool in tools
    ]
    texts: dict[str, tuple[str, int]] = {}
    if "instructions" in sources and traits.instructions.strip():
        place, line = _place_of(traits.instructions, prepared.loaded.path)
        texts[place] = redact(traits.instructions), line
    if "docs" in sources:
        for path in (file for each in docs for file in _documents(each)):
            try:
                texts[path_from(root, path)] = redact(read_text_file(path)), 1
            except ValueError as error:
                raise UsageError(f"--docs: {path} {error}") from None
        knowledge = {each.name: "\n".join(each.knowledge) for each in scenarios if each.knowledge}
        texts |= {f"knowledge of {name}": (text, 1) for name, text in knowledge.items()}
    policies, notes = _policies_in(texts)
    material = Material(
        goals=goals,
        policies=policies,
        seeds=gather_seeds(scenarios, runs),
        mocks=mocks,
        existing=existing,
        fingerprints=list(map(fingerprint, existing)),
        answers=answers,
        failed=failed_scripts(scenarios, runs) if "failures" in sources else (),
    )
    return AgentKnowledge(material, texts, notes)


def _policies_in(texts: Mapping[str, tuple[str, int]]) -> tuple[list[Policy], list[str]]:
    """Return the rules in the texts, each once, and notes about what was left out."""
    notes, policies = [], dict[object, Policy]()
    for source, (text, line) in texts.items():
        found, left_out = read_policies(text, source, line)
        for each in found:
            policies.setdefault((each.quote, each.edges), each)
        if left_out:
            notes.append(f"{source}: {count(left_out, 'sentence')} left out: too long, or too many rules")
    return list(policies.values()), notes


def _place_of(text: str, config: Path) -> tuple[str, int]:
    """Return the file with the instructions, and the line in which they begin."""
    try:
        written = read_text_file(config)
        if named := _INSTRUCTIONS_FILE.search(written):
            file = config.parent / named[1].strip()
            if file.is_file() and read_text_file(file).strip() == text.strip():
                return named[1].strip(), 1
    except ValueError:
        return "instructions", 1
    first = next(line.strip() for line in text.splitlines() if line.strip())[:_SHOWN]
    at = written.find(first)
    return (config.name, written[:at].count("\n") + 1) if at >= 0 else ("instructions", 1)


def _documents(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    return sorted(
        each for each in path.rglob("*") if each.suffix.lower() in (".md", ".txt") and each.is_file()
    )


class Tried(NamedTuple):
    """What the run of a case showed."""

    case: Case
    verdict: str
    """`kept`, `failing` or `dropped`."""
    why: str = ""
    """Of a failing case: the finding. Of a dropped one: the kind of reason."""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Generation:
    """One generation, from the plan to the written file."""

    prepared: Prepared
    known: AgentKnowledge
    path: Path
    most: int
    seed: int
    with_tools: bool

    def _planned(self, material: Material) -> tuple[list[Case], list[Policy], list[Case]]:
        """Return the cases that can be decided, the rules that need a model, and all cases."""
        cases, undecided = cases_of(material, tools=self.with_tools, seed=self.seed)
        usable = cases if self.prepared.judge else [each for each in cases if each.has_check]
        new = self._split(usable)[0]
        names, groups = {each.name for each in new}, {each.group for each in new if each.is_edge}
        left = [each for each in usable if each.name in names or each.group in groups]
        return choose(left or usable, self.most), [] if self.prepared.judge else undecided, cases

    def _split(self, cases: Sequence[Case]) -> tuple[list[Case], list[Tried]]:
        """Return the new cases, and those that are like an existing scenario."""
        new: list[Case] = []
        known: list[Tried] = []
        for case in cases:
            share, name = nearest(case, self.known.material)
            if share < SAME:
                new.append(case)
            else:
                known.append(Tried(case, "dropped", "like an existing scenario", f"{case.name}: {name}"))
        return new, known

    def show_plan(self) -> ExitCode:
        """Print the matrix, and how many model calls it takes at most."""
        cases, undecided, all_cases = self._planned(self.known.material)
        if not all_cases:
            raise UsageError(_MISSING)
        self._say_notes(undecided)
        for case in cases:
            say(clean(f"  {case.name}  ({shortened(case.origin, _SHOWN)})"))
        say(f"{count(len(cases), 'scenario')} of {len(all_cases)} possible")
        if self.prepared.judge:
            from agentest.runner.run_budget import estimate_of

            wording = calls_at_most((text for text, _ in self.known.texts.values()), len(cases))
            ready = self._ready([replace(each, goal=each.name, outcome=each.name) for each in cases])
            running = sum(each.total for each in estimate_of(ready, ready.plan.units))
            say(f"at most {wording:,} model calls to word them, and {running:,} to run them once")
        else:
            say("no model is configured, so none is called")
        return ExitCode.PASSED

    def _say_notes(self, undecided: Sequence[Policy]) -> None:
        for note in (*self.prepared.notes, *self.known.notes):
            tell(f"agentest: {note}")
        if undecided:
            first = f"{undecided[0].source}: {shortened(undecided[0].quote, _SHOWN)}"
            tell(
                clean(f"agentest: {count(len(undecided), 'rule')} cannot be tested without a model: {first}")
            )

    def write(self, project: Project, *, runs: bool) -> ExitCode:
        """Generate, run, and write what is worth keeping. Raises UsageError if nothing is."""
        prepared, material = self.prepared, self.known.material
        dropped: list[Tried] = []
        if prepared.judge:
            cases, lost = run_event_loop(self._worded)
            undecided: list[Policy] = []
            dropped += [Tried(each, "dropped", "invalid proposals of the model", each.name) for each in lost]
        else:
            cases, undecided, all_cases = self._planned(material)
            if not all_cases:
                raise UsageError(_MISSING)
        self._say_notes(undecided)
        new, known = self._split(cases)
        dropped += known
        tried = [Tried(case, "kept") for case in new]
        if runs and new:
            say(f"running {count(len(new), 'scenario')} once")
            result = self._run(new)
            if result is None or result.interrupted:
                tell("agentest: interrupted; nothing was written")
                return ExitCode.INTERRUPTED
            tried = judged(
                new, {each.name: each for each in result.scenarios}, strict=prepared.loaded.config.strict
            )
        dropped += [each for each in tried if each.verdict == "dropped"]
        kept = sorted((each for each in tried if each.verdict != "dropped"), key=lambda each: each.verdict)
        if not kept:
            self._report(kept, dropped, project)
            raise UsageError("no scenario was written: all were dropped" if dropped else _UNUSABLE)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self.path, source_of([each.case for each in kept]).encode())
        except OSError as error:
            raise UsageError(f"{self.path} cannot be written: {error.strerror}") from None
        self._report(kept, dropped, project)
        if runs and material.failed:
            run_event_loop(self._show_edges)
        return ExitCode.PASSED

    async def _show_edges(self) -> None:
        """Print with which values the failed scripts fail. Each value is tried in one conversation."""
        from agentest.plugins.authoring.failure_edges import find_edges

        for script in self.known.material.failed[:_MOST_FAILED]:
            for edge in await find_edges(script, self._passes):
                say(clean(f"{script.name}  {edge.text}"))

    async def _passes(self, scenario: Scenario) -> bool | None:
        from agentest.runner.run import execute

        found = DiscoveredScenarios(scenarios=(scenario,))
        result = (await execute(self._planned_once(found, ()), _show)).result
        if result is None or result.interrupted:
            return None
        return {Status.PASSED: True, Status.FAILED: False}.get(result.scenarios[0].verdict.status)

    async def _worded(self) -> tuple[list[Case], list[Case]]:
        """Return the cases in the words of the model, and those that it could not word."""
        from agentest.runner.session import RunSession, Stop, open_models, settings_of

        prepared, material = self.prepared, self.known.material
        settings = settings_of(prepared.loaded.config, prepared.request.options)
        session = RunSession(prepared, settings, _show, Stop(), tell)
        async with AsyncExitStack() as stack:
            models, _ = await open_models(session, None, stack)
            if models.judge is None:
                raise UsageError("no model is configured; set `model`, or use --offline")
            policies = list(material.policies)
            try:
                for source, (text, line) in self.known.texts.items():
                    found = await find_rules(models.judge, text, source, line)
                    quotes = {each.quote for each in policies}
                    policies += [each for each in found.kept if each.quote not in quotes]
                    if found.unread:
                        self.known.notes.append(
                            f"{source}: too long: the model read all but {count(found.unread, 'part')}"
                        )
                    if found.dropped:
                        self.known.notes.append(
                            f"{source}: {count(found.dropped, 'rule')} of the model dropped, not quoted"
                        )
                cases, _, _ = self._planned(replace(material, policies=policies))
                if not cases:
                    raise UsageError(_MISSING)
                worded = await word(models.judge, [each for each in cases if not each.like])
            except ModelError as error:
                raise UsageError(f"the model cannot be used: {error}") from None
        kept = [*(each for each in cases if each.like), *worded.kept]
        names = {each.name for each in kept}
        return kept, [each for each in cases if each.name not in names]

    def _run(self, cases: Sequence[Case]) -> RunResult | None:
        """Run each case once. Raises UsageError if the agent cannot be reached."""
        from agentest.runner.agents import shared_ports
        from agentest.runner.run import execute

        with shared_ports(self._ready(cases)) as ready:
            return run_event_loop(execute, ready, _show).result

    def _ready(self, cases: Sequence[Case]) -> Prepared:
        """Return a run of each case once. Raises UsageError if the file would not load."""
        prepared, material = self.prepared, self.known.material
        source = source_of(cases).encode()
        request = prepared.request
        found = discover_file(self.path, Imports(), material.existing, request.root, source)
        if found.broken:
            raise UsageError(f"a generated scenario cannot be loaded: {found.broken[0].message}")
        return self._planned_once(found, material.existing)

    def _planned_once(self, found: DiscoveredScenarios, existing: Sequence[Scenario]) -> Prepared:
        """Return a run of these scenarios with one conversation each."""
        prepared, request = self.prepared, self.prepared.request
        options = Options(
            agent=request.options.agent or prepared.loaded.config.agent.name,
            conversations=1,
            offline=request.options.offline,
            model=request.options.model,
            strict=False,
        )
        request = replace(request, options=options)
        plan = make_plan(prepared.loaded.config, found, options, request.root, existing)
        return prepared_for(request, prepared.loaded, plan)

    def _report(self, kept: Sequence[Tried], dropped: Sequence[Tried], project: Project) -> None:
        failing = [each for each in kept if each.verdict == "failing"]
        for title, rows in (
            ("fails now: look at it", failing),
            ("kept", [each for each in kept if each.verdict == "kept"]),
        ):
            if rows:
                say(title)
            for each in rows:
                for line in self._lines(each):
                    say(clean(line))
        reasons = Counter(each.why for each in dropped)
        if dropped:
            say("dropped")
        for reason, number in reasons.most_common():
            first = next(each.detail for each in dropped if each.why == reason)
            say(clean(f"  {number:>3}  {reason}, such as {shortened(first, _SHOWN)}"))
        if kept:
            path = project.display_path(self.path)
            say(f"wrote {path}")
            fails = f", {len(failing)} of them fail{'s' * (len(failing) == 1)} now" if failing else ""
            say(f"{count(len(kept), 'scenario')}{fails}. Next: agentest run {path}")

    def _lines(self, tried: Tried) -> Iterator[str]:
        share, name = nearest(tried.case, self.known.material)
        yield f"  {tried.case.name}"
        if tried.why:
            yield f"      {shortened(' '.join(tried.why.split()), _SHOWN)}"
            yield f"      from {shortened(tried.case.origin, _SHOWN)}"
        if name:
            yield f"      nearest: {name} ({share:.0%})"


def _show(event: Event) -> None:
    if isinstance(event, Noted):
        tell(f"agentest: {event.text}")


def judged(cases: Sequence[Case], results: dict[str, ScenarioResult], *, strict: bool) -> list[Tried]:
    """Return what the run of each case says: keep it, keep it as a failure, or drop it.

    Args:
        strict: True if a mock that is not called makes a scenario errored.
    """
    called = {
        name: {call.name for each in result.conversations for call in each.conversation.tool_calls}
        for name, result in results.items()
    }
    by_group: dict[str, set[str]] = {}
    for case in cases:
        by_group.setdefault(case.group, set()).update(called.get(case.name, ()))
    tried = []
    for case in cases:
        result = results.get(case.name)
        made = _judged(case, result, is_reached=case.tool in by_group[case.group])
        needed = {case.tool, *(called.get(case.name, ()) if strict else by_group[case.group])}
        tools = {name: mock for name, mock in case.tools.items() if name in needed}
        tried.append(made._replace(case=replace(case, tools=tools)))
    return tried


def _judged(case: Case, result: ScenarioResult | None, *, is_reached: bool) -> Tried:
    def drop(why: str, detail: str = "") -> Tried:
        return Tried(case, "dropped", why, f"{case.name}: {detail}" if detail else case.name)

    if result is None:
        return drop("did not run")
    reasons = result.verdict.reasons
    conversation = result.conversations[0].conversation if result.conversations else None
    if conversation and conversation.failure:
        by_agent = conversation.failure.blame is Blame.AGENT
        return drop(
            "the agent failed" if by_agent else "a mock or a model failed", conversation.failure.message
        )
    if conversation is None or result.verdict.status in (Status.ERRORED, Status.SKIPPED):
        return drop("could not be judged", reasons[0].message if reasons else "")
    for call in conversation.tool_calls:
        if call.raised or call.invalid_arguments:
            return drop(
                "a mock did not answer", f"{call_text(call)}: {call.raised or call.invalid_arguments}"
            )
        if case.is_contradicted_by(call.result):
            return drop("a mock function has another value; results of `agentest run` replace it", call.name)
    if result.verdict.status is Status.PASSED:
        if case.tool and case.has_check and not is_reached and not case.group.startswith("ban "):
            return drop("proves nothing: no script leads to the tool", case.tool)
        return Tried(case, "kept")
    compared = [each.trajectory for each in reasons if each.trajectory]
    is_only_missing = len(compared) == len(reasons) and not any(
        each.forbidden_calls or each.broken or each.error for each in compared
    )
    is_comparable = case.like or (is_reached and case.must_say)  # other values of the script reach the tool
    if is_only_missing and not is_comparable:
        return drop("no script leads to the tool", case.tool)
    return Tried(case, "failing", reasons[0].message)
