"""`agentest generate`: have a model propose scenarios, run them, and keep those that work."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import click

from agentest.cli.listing import broken, report_load_errors
from agentest.cli.location import Location, Project, request_of
from agentest.cli.options import exits, flag, model_option, offline_option, option, path_option, where, which
from agentest.domain.events import Event, Noted, ReportOptions
from agentest.domain.results import ScenarioResult, Status
from agentest.domain.transcript import Blame, call_text
from agentest.plugins.authoring import generation
from agentest.runner.known_tools import KnownTool, agent_traits, joined_tools, served_tools, tools_of_unit
from agentest.runner.plan import Options, agents_under_test, make_plan
from agentest.runner.prepare import Prepared, prepare, prepared_for
from agentest.scenarios.discovery import discover_file
from agentest.scenarios.model import Scenario
from agentest.scenarios.variations import base_mocks
from agentest.store.reader import read_results
from agentest.store.runs.folder import RunKind, latest_run
from agentest.support.errors import ExitCode, ModelError, UsageError, errors_as
from agentest.support.files import path_from, read_text_file, write_for_user
from agentest.support.importing import Imports
from agentest.support.interrupts import run_event_loop
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.terminal import clean, say, tell, tell_notes
from agentest.support.text import count, did_you_mean, shortened

SOURCES = ("instructions", "tools", "docs", "failures")
_OUTPUT = Path("scenarios/generated.sim.py")
_SHOWN = 160
_INSTRUCTIONS_FILE = re.compile(r"""instructions_?[fF]ile["']?\s*[:=]\s*["']?([^"'\n,}]+)""")
_NO_MODEL = (
    "generating scenarios takes a model: set `model`, or give --model. Without one, a coding agent can write "
    "them: agentest skill install"
)
_MISSING = (
    "nothing can be generated: there are no rules and no tool is known. Give `agent.instructions`, "
    "`agent.tools`, or documents with --docs PATH; a run with mocks shows tools, too"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateOptions:
    """The options that only `agentest generate` has."""

    sources: str | None = None
    docs: tuple[str, ...] = ()
    most: int | None = None  # the most scenarios; None: 20
    output: Path | None = None
    no_run: bool = False


@click.command()
@click.argument("targets", nargs=-1, metavar="[PATH | PATH:LINE | PATH::NAME]…")
@where
@which
@option("--from sources", "SOURCES", "Use only these: instructions, tools, docs, failures.")
@option("--docs", "PATH", "Read rules in this .md or .txt file, or folder; repeat it.", multiple=True)
@option("--count most", "N", "Generate at most N scenarios (default: 20).", kind=click.IntRange(min=1))
@path_option("--output", "Write to this file (default: scenarios/generated.sim.py).")
@flag("--dry-run", "Show what the model would read, and the most model calls.")
@model_option
@offline_option
@flag("--no-run", "Write all scenarios without running them.")
@exits
def generate(
    location: Location, options: Options, generating: GenerateOptions, targets: tuple[str, ...]
) -> ExitCode:
    """Have a model write scenarios for the rules in the agent's instructions and for its tools.

    A second question to the model refuses what contradicts the rules. Each scenario runs once and is kept
    only if it works and is new. The selection says which scenarios to learn from.

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
    if prepared.judge is None:
        raise UsageError(_NO_MODEL)
    everything = prepared
    if options.filtered or targets:  # what is new is new to all scenarios
        everything = prepare(request_of(project, Options(offline=True)), may_be_empty=True)
    wanted += ("docs",) if docs else ()
    material = gather(prepared, everything, wanted, [project.path(Path(each)) for each in docs])
    if not material.texts and not material.tools:
        raise UsageError(_MISSING)
    work = Generation(prepared, material, generation.free_path(path), generating.most or 20)
    return work.show_plan() if options.dry_run else work.write(project, runs=not generating.no_run)


def _sources(text: str | None) -> tuple[str, ...]:
    names = [each.strip() for each in text.split(",") if each.strip()] if text else SOURCES[:3]
    for name in names:
        if name not in SOURCES:
            raise UsageError(f"--from: there is no source {name!r}; {did_you_mean(name, SOURCES)}")
    return tuple(names)


def gather(
    prepared: Prepared, everything: Prepared, sources: Sequence[str], docs: Sequence[Path]
) -> generation.Material:
    """Collect instructions, documents, tools, and what earlier runs recorded.

    Args:
        prepared: the scenarios to learn from.
        everything: all scenarios, which generated ones must differ from.
    """
    config, root = prepared.loaded.config, prepared.request.root
    scenarios, existing = (
        list({unit.scenario.name: unit.scenario for unit in each.plan.units}.values())
        for each in (prepared, everything)
    )
    names, agents = agents_under_test(config, prepared.request.options.agent)
    agent = agents[names[0]]
    traits = agent_traits(names[0], agent, served_tools(agent, root, config.output_dir, scenarios))
    latest = latest_run(prepared.output_dir, (RunKind.RUN, RunKind.MERGE))
    runs = [read_results(latest.file)] if latest and latest.file else []
    failing_first = sorted(scenarios, key=generation.has_failing_mock, reverse=True)
    mocks = generation.recorded_answers(runs)
    mocks |= {name: mock for each in failing_first for name, mock in base_mocks(each).items()}
    tools = joined_tools([tools_of_unit(traits.tools, mocks), [KnownTool(name=name) for name in mocks]])
    return generation.Material(
        texts=dict(_texts(prepared, traits.instructions, scenarios, sources, docs)),
        tools=tools if "tools" in sources or "instructions" in sources or docs else (),
        mocks=mocks,
        existing=existing,
        failed=generation.failed_scripts(scenarios, runs) if "failures" in sources else (),
    )


def _texts(
    prepared: Prepared,
    instructions: str,
    scenarios: Sequence[Scenario],
    sources: Sequence[str],
    docs: Sequence[Path],
) -> Iterator[tuple[str, tuple[str, int]]]:
    root, redact = prepared.request.root, prepared.loaded.redact
    if "instructions" in sources and instructions.strip():
        place, line = _place_of(instructions, prepared.loaded.path)
        yield place, (redact(instructions), line)
    if "docs" not in sources:
        return
    for path in (file for each in docs for file in _documents(each)):
        with errors_as(UsageError, f"--docs: {path} "):
            text = redact(read_text_file(path))
        yield path_from(root, path), (text, 1)
    for each in scenarios:
        if each.knowledge:
            yield f"knowledge of {each.name}", ("\n".join(each.knowledge), 1)


def _place_of(text: str, config: Path) -> tuple[str, int]:
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
    found = (each for each in path.rglob("*") if each.suffix.lower() in (".md", ".txt") and each.is_file())
    return sorted(found) if path.is_dir() else [path]


class Tried(NamedTuple):
    """A case that is kept, and why it fails now; "" if it passes."""

    case: generation.Case
    finding: str = ""


@dataclass(frozen=True, slots=True)
class Generation:
    """One generation, from the plan to the written file."""

    prepared: Prepared
    material: generation.Material
    path: Path
    most: int

    def show_plan(self) -> ExitCode:
        """Print what the model would read, and how many model calls it takes at most."""
        for source, (text, _) in self.material.texts.items():
            say(clean(f"  {source}: {len(text):,} characters"))
        tools = ", ".join(tool.name for tool in self.material.tools)
        say(clean(f"  {count(len(self.material.tools), 'tool')}: {shortened(tools, _SHOWN)}"))
        calls = generation.calls_at_most(self.material, self.most)
        say(f"at most {calls:,} model calls to propose {self.most} scenarios, then one judge call a scenario")
        return ExitCode.PASSED

    def write(self, project: Project, *, runs: bool) -> ExitCode:
        """Generate, run, and write what is worth keeping. Raises UsageError if nothing is."""
        tell_notes(self.prepared.notes)
        cases, dropped = run_event_loop(self._proposed)
        known = list(map(generation.fingerprint, self.material.existing))
        new = [each for each in cases if generation.nearest(each, known)[0] < generation.SAME]
        dropped += [
            generation.Dropped(
                "like an existing scenario", f"{each.scenario.name}: {generation.nearest(each, known)[1]}"
            )
            for each in cases
            if each not in new
        ]
        problems = [(case, self._load_problem(case)) for case in new]
        broken_ones = [f"{case.scenario.name}: {problem}" for case, problem in problems if problem]
        dropped += [generation.Dropped("cannot be loaded", each) for each in broken_ones]
        new = [case for case, problem in problems if not problem]
        kept = [Tried(case) for case in new]
        if runs and new:
            say(f"running {count(len(new), 'scenario')} once")
            results = self._run(new)
            if results is None:
                tell("agentest: interrupted; nothing was written")
                return ExitCode.INTERRUPTED
            judged = [judge_case(case, results.get(case.scenario.name)) for case in new]
            kept = [each for each in judged if isinstance(each, Tried)]
            dropped += [each for each in judged if isinstance(each, generation.Dropped)]
        kept.sort(key=lambda each: not each.finding)  # findings first
        if kept:
            write_for_user(self.path, generation.source_of([each.case for each in kept]))
        self._report(kept, dropped, known, project)
        if not kept:
            raise UsageError(
                "no scenario was written: " + ("all were dropped" if dropped else "none was proposed")
            )
        return ExitCode.PASSED

    async def _proposed(self) -> tuple[list[generation.Case], list[generation.Dropped]]:
        from agentest.runner.session import RunSession, Stop, open_models, settings_of

        prepared = self.prepared
        settings = settings_of(prepared)
        session = RunSession(prepared, settings, _show, Stop(), tell)
        async with AsyncExitStack() as stack:
            models, _ = await open_models(session, None, stack)
            if models.judge is None:
                raise UsageError(_NO_MODEL)
            with errors_as(UsageError, "the model cannot be used: ", ModelError):
                return await generation.propose(models.judge, self.material, self.most)

    def _load_problem(self, case: generation.Case) -> str:
        """Return why the scenario of a case cannot be loaded; "" if it can."""
        root = self.prepared.request.root
        try:
            found = discover_file(
                self.path, Imports(), self.material.existing, root, generation.source_of([case])
            )
        except ValueError as error:
            return str(error)
        return found.broken[0].message if found.broken else ""

    def _run(self, cases: Sequence[generation.Case]) -> dict[str, ScenarioResult] | None:
        from agentest.runner.agents import shared_ports
        from agentest.runner.run import execute

        prepared, request = self.prepared, self.prepared.request
        found = discover_file(
            self.path, Imports(), self.material.existing, request.root, generation.source_of(cases)
        )
        options = Options(
            agent=request.options.agent or prepared.loaded.config.agent.name,
            conversations=1,
            offline=request.options.offline,
            model=request.options.model,
            strict=False,
        )
        request = replace(request, options=options)
        plan = make_plan(prepared.loaded, found, options, request.root, self.material.existing)
        with shared_ports(prepared_for(request, prepared.loaded, plan)) as ready:
            result = run_event_loop(execute, ready, _show).result
        if result is None or result.interrupted:
            return None
        return {each.name: each for each in result.scenarios}

    def _report(
        self,
        kept: Sequence[Tried],
        dropped: Sequence[generation.Dropped],
        known: Sequence[generation.Fingerprint],
        project: Project,
    ) -> None:
        failing, working = ([each for each in kept if bool(each.finding) is fails] for fails in (True, False))
        for title, rows in (("fails now: look at it", failing), ("kept", working)):
            if rows:
                say(title)
            for each in rows:
                for line in _lines(each, known):
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


def _lines(tried: Tried, known: Sequence[generation.Fingerprint]) -> Iterator[str]:
    share, name = generation.nearest(tried.case, known)
    yield f"  {tried.case.scenario.name}"
    if tried.finding:
        yield f"      {shortened(' '.join(tried.finding.split()), _SHOWN)}"
        yield f"      from {shortened(tried.case.origin, _SHOWN)}"
    if name:
        yield f"      nearest: {name} ({share:.0%})"


def _show(event: Event) -> None:
    if isinstance(event, Noted):
        tell(f"agentest: {event.text}")


def judge_case(case: generation.Case, result: ScenarioResult | None) -> Tried | generation.Dropped:
    """Return what the run of a case says: keep it, as a finding if it failed, or drop it."""

    def drop(why: str, detail: str = "") -> generation.Dropped:
        return generation.Dropped(why, f"{case.scenario.name}: {detail}" if detail else case.scenario.name)

    if result is None:
        return drop("did not run")
    reasons = result.verdict.reasons
    conversation = result.conversations[0].conversation if result.conversations else None
    if conversation and conversation.failure:
        by_agent = conversation.failure.blame is Blame.AGENT
        why = "the agent failed" if by_agent else "a mock or a model failed"
        return drop(why, conversation.failure.message)
    if conversation is None or result.verdict.status in (Status.ERRORED, Status.SKIPPED):
        return drop("could not be judged", reasons[0].message if reasons else "")
    for call in conversation.tool_calls:
        if call.raised or call.invalid_arguments:
            problem = call.raised or call.invalid_arguments
            return drop("a mock did not answer", f"{call_text(call)}: {problem}")
    needed = generation.without_idle_mocks(case, (call.name for call in conversation.tool_calls))
    failed = result.verdict.status is Status.FAILED
    return Tried(needed, reasons[0].message if failed and reasons else "")
