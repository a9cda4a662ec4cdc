"""Saves findings as scenario files, and knows those that earlier explorations have saved.

A saved scenario fails as long as the bug is there. Its docstring says what is wrong, how often it was seen,
and how to replay it. The identifier of the finding stands there, too, so that the file may be renamed.
"""

from __future__ import annotations

import ast
import datetime
import re
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import field
from math import ceil, log
from pathlib import Path
from typing import NamedTuple

from agentest.config.config import INVARIANTS, ExploreSettings
from agentest.domain.reasons import conversation_failed, conversation_passed
from agentest.domain.results import ScenarioResult, Severity, Status
from agentest.domain.results.exploration import ExploredPart, Finding, FindingRate, FindingStatus, NotTried
from agentest.domain.transcript import call_text
from agentest.judging.safety_checks import CONSENT, NO_SECRET
from agentest.plugins.explore.exploration import changes_of, finding_id
from agentest.plugins.explore.model import (
    BudgetSpent,
    FindingKey,
    Observe,
    Reduced,
    ToolEffects,
    Variation,
    relaxed,
)
from agentest.plugins.explore.mutation_sweep import RELATION
from agentest.plugins.explore.reduction_steps import recorded_mock
from agentest.plugins.explore.saved_checks import FindingToSave, with_check
from agentest.runner.plan import Unit
from agentest.scenarios.discovery import discover_file
from agentest.scenarios.model import FOUND, Exclusions, Scenario
from agentest.scenarios.python_formatting import literal
from agentest.scenarios.source_code import scenarios_source
from agentest.support.errors import UsageError
from agentest.support.files import readable, shown_path, write_atomically
from agentest.support.importing import Imports
from agentest.support.json_text import json_text
from agentest.support.lazy_dataclasses import dataclass, replace
from agentest.support.text import count, did_you_mean, shortened

ENDING = ".sim.py"
_MISS = 0.05
_MOST_CONVERSATIONS = 20
_WIDTH = 88
_SHOWN = 300
_MOST_TURNS = 4
_REPLAY = "agentest explore --replay"
_ID = re.compile(rf"{_REPLAY} (\S+)")
_FAILED = "; this file failed then"
_SEVERITY = re.compile(r"^Severity: (\w+)", re.MULTILINE)
_PART = re.compile(r"^Change: (\w+)", re.MULTILINE)


class SavedFinding(NamedTuple):
    """A finding that an earlier exploration saved, as its file describes it."""

    id: str
    path: Path
    title: str
    severity: Severity
    part: ExploredPart
    has_failed: bool  # True if its file is known to have failed, because it was run before it was saved


@dataclass(slots=True, eq=False)
class FoundScenarios:
    """The folder of saved findings (`Save`)."""

    root: Path  # the project, to which paths are relative
    settings: ExploreSettings
    seed: int = 0  # of the exploration
    date: datetime.date = field(default_factory=datetime.date.today)
    not_saved: list[NotTried] = field(default_factory=list)  # findings without a file, each with the reason

    async def __call__(
        self, key: FindingKey, reduced: Reduced, base: Unit, variation: Variation, observe: Observe
    ) -> str | None:
        name = finding_id(key)
        path = self.root / self.settings.found / f"{name}{ENDING}"
        if path.exists():  # a person may have changed it
            return shown_path(path, self.root)
        try:
            source = self.source(key, reduced, base, variation)
            discovered = discover_file(path, Imports(), source=source.encode())
            problems = [each.message for each in discovered.broken]
            problems += [each.refused for each in discovered.scenarios if each.refused]
            if problems or len(discovered.scenarios) != 1:
                raise ValueError(next(iter(problems), "it defines no scenario"))
            await _check_that_it_fails(discovered.scenarios[0], name, observe)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, source.encode())
        except (OSError, ValueError, RecursionError) as error:
            reason = f"cannot be saved: {shortened(str(error), _SHOWN)}"
            self.not_saved.append(NotTried(reduced.violation.title, reason))
            return None
        return shown_path(path, self.root)

    def source(self, key: FindingKey, reduced: Reduced, base: Unit, variation: Variation) -> str:
        """Return the source of a finding's file. Raises ValueError if it has none."""
        scenario = relaxed(reduced.scenario)
        if key.oracle in _CHECKED:
            scenario = replace(
                scenario,
                turns=tuple(replace(turn, trajectory=(), expect=None) for turn in scenario.turns),
                trajectory=(),
                expect=(),
                never_checks=(),
                secrets=scenario.secrets if key.oracle == NO_SECRET else (),
                consent=scenario.consent if key.oracle == CONSENT else {},
            )
        tools = ToolEffects(base, self.settings)
        finding = FindingToSave(key, reduced, scenario, tools.schema(key.tool) if key.tool else None)
        checked = with_check(finding)
        if checked is None:
            raise ValueError("no word of a scenario expresses what was violated")
        name = finding_id(key)
        found = replace(
            checked.scenario,
            name=f"{reduced.violation.title} ({name})",
            conversations_per_scenario=conversations_to_see(reduced.rate),
            repeat=None,
            tags=(FOUND,),
            explore=Exclusions(everything=True),
        )
        return scenarios_source(
            [found],
            _docstring(self._about(name, reduced, base, variation)),
            functions={"check": checked.check} if checked.check else {},
            recorded=lambda tool: recorded_mock(reduced.example.conversation, tool),
        )

    def _about(self, name: str, reduced: Reduced, base: Unit, variation: Variation) -> list[str]:
        violation, rate = reduced.violation, reduced.rate
        part, change = changes_of(reduced.scenario, variation)
        interval = f"{rate.low * 100:.0f}–{rate.high * 100:.0f} %"
        size = "No smaller scenario fails." if reduced.minimal else "A smaller scenario may fail, too."
        return [
            _ended(violation.title[:1].upper() + violation.title[1:]),
            _ended(violation.text),
            f"It happened in {rate.k} of {rate.n} conversations ({interval}). {size}",
            "\n".join(_example(reduced)),
            "\n".join(
                [
                    f"Severity: {violation.severity.label}",
                    f"Change: {part.removesuffix('s')} {change}".rstrip(),
                    f"Scenario: {base.scenario.name}, {base.file}:{base.scenario.line}",
                    f"Found: {self.date.isoformat()} by agentest explore, seed {self.seed}{_FAILED}",
                    f"Replay: {_REPLAY} {name}",
                ]
            ),
        ]


def conversations_to_see(rate: FindingRate) -> int:
    """Return how many conversations show a finding of this rate with a chance of 95 %; at most 20."""
    if rate.k == rate.n:
        return 1
    return max(1, min(_MOST_CONVERSATIONS, ceil(log(_MISS) / log(1 - max(rate.low, 1e-6)))))


_CHECKED = (*INVARIANTS, RELATION)  # oracles of findings whose scenario has no `check` of the user


async def _check_that_it_fails(scenario: Scenario, name: str, observe: Observe) -> None:
    """Run a scenario until it fails. Raises ValueError if it does not."""
    most = scenario.conversations_per_scenario or 1
    for number in range(1, most + 1):
        try:
            result = await observe(scenario, f"{name} · file", number)
        except BudgetSpent:
            raise ValueError("the budget was spent before its file had failed") from None
        if conversation_failed(result):
            return
    raise ValueError(f"its file passed in {count(most, 'conversation')} with the bug")


def _ended(text: str) -> str:
    text = " ".join(text.split())
    return text if text.endswith((".", "!", "?", "'", '"')) else f"{text}."


def _example(reduced: Reduced) -> Iterable[str]:
    conversation = reduced.example.conversation
    yield "For example:"
    for turn in conversation.turns[-_MOST_TURNS:]:
        yield f"  user: {_line(turn.user_message)}"
        for call in turn.tool_calls:
            yield f"  call: {_line(call_text(call))} → {_line(json_text(call.result))}"
        yield f"  agent: {_line(turn.agent_message)}"
    if (rest := conversation.unfinished) is not None:
        yield f"  user: {_line(rest.user_message)}"
        for call in rest.tool_calls[:_MOST_TURNS]:
            yield f"  call: {_line(call_text(call))} → {_line(json_text(call.result))}"
    if conversation.failure:
        yield f"  error: {_line(conversation.failure.message)}"


def _line(text: str) -> str:
    return shortened(" ".join(text.split()), 2 * _WIDTH)


def _docstring(paragraphs: Iterable[str]) -> str:
    wrap = textwrap.TextWrapper(_WIDTH, break_on_hyphens=False, break_long_words=False)
    lines: list[str] = []
    for paragraph in paragraphs:
        if lines:
            lines.append("")
        for line in paragraph.split("\n"):
            wrap.subsequent_indent = "    " if line.startswith("  ") else ""
            lines += [line] if _REPLAY in line else wrap.wrap(line) or [""]
    text = readable("\n".join(lines))  # Python 3.13 compiles no docstring with half of a character
    escaped = text.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
    escaped = "".join(each if each == "\n" or each.isprintable() else literal(each)[1:-1] for each in escaped)
    return f'"""{escaped}\n"""'


def saved_findings(root: Path, settings: ExploreSettings) -> Mapping[str, SavedFinding]:
    """Return the saved findings of a project, by identifier. Other files are ignored."""
    found: dict[str, SavedFinding] = {}
    for path in sorted((root / settings.found).glob(f"*{ENDING}")):
        saved = read_saved(path)
        if saved is not None:
            found.setdefault(saved.id, saved)
    return found


def read_saved(path: Path) -> SavedFinding | None:
    """Read a saved finding from its docstring; None if the file has none."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        about = ast.get_docstring(tree) or ""
    except (OSError, ValueError, SyntaxError):
        return None
    identifier = _ID.search(about)
    if identifier is None:
        return None
    severity, part = _SEVERITY.search(about), _PART.search(about)
    names = {each.label: each for each in Severity}
    parts = {each.value.removesuffix("s"): each for each in ExploredPart}
    return SavedFinding(
        id=identifier[1],
        path=path,
        title=_name_in(tree).removesuffix(f" ({identifier[1]})"),
        severity=names.get(severity[1] if severity else "", Severity.HIGH),
        part=parts.get(part[1] if part else "", ExploredPart.BASE),
        has_failed=_FAILED in about,
    )


def _name_in(tree: ast.Module) -> str:
    for each in tree.body:
        if isinstance(each, ast.Expr) and isinstance(each.value, ast.Call) and each.value.args:
            name = each.value.args[0]
            if isinstance(name, ast.Constant):
                return str(name.value)
    return ""


def find_saved(finding: str, here: Path, root: Path, settings: ExploreSettings) -> SavedFinding:
    """Return the saved finding with an identifier, the beginning of one, or a file. Raises UsageError."""
    path = here / finding
    if finding.endswith(ENDING) or path.is_file():
        saved = read_saved(path)
        if saved is None:
            raise UsageError(
                f"--replay: {finding} does not name its finding; write `{_REPLAY} ID` in its text"
            )
        return saved
    known = saved_findings(root, settings)
    fitting = [each for name, each in known.items() if name == finding] or [
        each for name, each in known.items() if name.startswith(finding) or name.endswith(f"-{finding}")
    ]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise UsageError(f"--replay: {finding!r} fits {', '.join(each.id for each in fitting)}; name one")
    if not known:
        raise UsageError(f"--replay: {settings.found} contains no saved finding; run agentest explore first")
    raise UsageError(f"--replay: there is no saved finding {finding!r}; {did_you_mean(finding, known)}")


def findings_of_saved(
    saved: Mapping[str, SavedFinding], results: Iterable[ScenarioResult], root: Path
) -> list[Finding]:
    """Return a known or fixed finding for each saved scenario that has run.

    A scenario that fails is known, and one that failed once and passes is fixed. An errored one decides
    nothing, and neither does one that passes and may never have failed: somebody wrote or changed it.
    """
    by_file = {each.path.resolve(): each for each in saved.values()}
    findings = []
    for result in results:
        each = by_file.get((root / result.file).resolve())
        status = _STATUS.get(result.verdict.status)
        if each is not None and status and (each.has_failed or status is FindingStatus.KNOWN):
            findings.append(_of_saved(each, result, status, root))
    return findings


_STATUS = {Status.PASSED: FindingStatus.FIXED, Status.FAILED: FindingStatus.KNOWN}


def _of_saved(saved: SavedFinding, result: ScenarioResult, status: FindingStatus, root: Path) -> Finding:
    failed = [each for each in result.conversations if not conversation_passed(each)]
    reason = next((each.message for each in result.verdict.reasons), "")
    return Finding(
        id=saved.id,
        title=saved.title,
        oracle=saved.id.partition("-")[0],
        severity=saved.severity,
        status=status,
        part=saved.part,
        scenario=result.name,
        agent=result.agent,
        source=result.file,
        line=result.line,
        file=shown_path(saved.path, root),
        text=reason if status is FindingStatus.KNOWN else "the saved scenario passes",
        transcript=failed[0] if failed else None,
    )
