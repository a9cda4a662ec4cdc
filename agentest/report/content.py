"""The content of every report: values derived once from a run's results, and the phrases for them.

Reporters only lay this out: as text of some width and color, as XML, or as Markdown and annotations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Protocol

from agentest.domain.end_reason import IN_WORDS, Ending
from agentest.domain.figures import run_pass_hat_k, run_pass_rate
from agentest.domain.reasons import criterion_message, goal_outcome, goal_reason
from agentest.domain.results import (
    CauseKind,
    ConversationResult,
    CriterionOutcome,
    CriterionResult,
    CriterionTotals,
    Figure,
    GoalOutcome,
    Reason,
    ReasonKind,
    RootCause,
    RunResult,
    ScenarioCause,
    ScenarioResult,
    Score,
    Status,
    UniqueError,
    VerdictWarning,
    WarningCode,
    by_code,
)
from agentest.domain.transcript import Blame, Conversation
from agentest.domain.verdict import run_status
from agentest.store.run_results import causes_of_run
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.text import count, quoted_names, shortened, turn_name

NOT_PASSED = (Status.FAILED, Status.ERRORED)
WORST_FIRST = (*NOT_PASSED, Status.PASSED, Status.SKIPPED)
NEWLY_FAILING = "newly failing"
VIOLATIONS = (ReasonKind.THRESHOLD, ReasonKind.PASS_RATE)
_REASON_CHARS = 400
_ENDED_BY = {
    Blame.AGENT: "ended by an error of the agent",
    Blame.MOCK: "ended by an error of a mock",
    Blame.MODEL: "ended by an error of a model",
    Blame.INTERNAL: "ended by an error outside the agent",
}


class RunReport:
    """The content of reports about a whole run. A value is derived when a reporter first needs it.

    Args:
        next_step: the command that continues an interrupted run; "" if there is none.
    """

    def __init__(self, result: RunResult, next_step: str = "") -> None:
        self.result = result
        self.status = run_status(result)
        self.several_agents = len(result.agents) > 1
        self.next_step = next_step if result.unfinished or result.lacks_conversations else ""
        self.scenarios = [ScenarioReport(s, self.several_agents) for s in result.scenarios]

    @cached_property
    def finished(self) -> list[ScenarioReport]:
        """The scenarios with a verdict of their own, worst first."""
        finished = [ScenarioReport(s, self.several_agents) for s in self.result.finished]
        return sorted(finished, key=lambda each: WORST_FIRST.index(each.status))

    @cached_property
    def not_passed(self) -> list[ScenarioReport]:
        return [each for each in self.finished if each.status in NOT_PASSED]

    @cached_property
    def causes(self) -> Sequence[RootCause]:
        return causes_of_run(self.result)

    @cached_property
    def blocks(self) -> list[CauseBlock]:
        """The scenarios that did not pass, each in one block: that of the worst cause that it has."""
        if not self.not_passed:
            return []
        from agentest.domain.root_causes import root_cause_id

        ranks = {cause.id: rank for rank, cause in enumerate(self.causes)}
        for cause in self.causes:
            ranks |= {root_cause_id(cause.kind, label): ranks[cause.id] for label in cause.labels}
        by_rank: dict[tuple[int, str], list[ScenarioReport]] = {}
        for scenario in self.not_passed:
            rank = min((ranks[id] for id, _ in scenario.causes if id in ranks), default=len(ranks))
            title = self.causes[rank].title if rank < len(ranks) else scenario.headline
            by_rank.setdefault((rank, title), []).append(scenario)
        causes = dict(enumerate(self.causes))
        return [CauseBlock(title, mine, causes.get(rank)) for (rank, title), mine in sorted(by_rank.items())]

    @property
    def counts(self) -> list[tuple[int, str, Status]]:
        """The number of scenarios with each outcome, the outcome in words, and the status to show it as."""
        statuses = [each.status for each in self.finished]
        counts = [(statuses.count(status), str(status), status) for status in WORST_FIRST]
        counts.append((len(self.result.unfinished), "unfinished", Status.ERRORED))
        return [each for each in counts if each[0]]

    @property
    def early_end(self) -> str:
        return ended_early_text(self.result)

    @cached_property
    def rates(self) -> list[Rates]:
        """The rates of the run, or of each agent in a comparison; none for single conversations."""
        result = self.result
        by_agent = {name: [s for s in result.scenarios if s.agent == name] for name in result.agents}
        parts = by_agent if result.comparison else {"": result.scenarios}
        rates = [rates for agent, scenarios in parts.items() if (rates := _rates(agent, scenarios))]
        return rates if sum(each.rate.n for each in rates) > 1 else []

    @property
    def rates_note(self) -> str:
        """How to read the rates, and which drops this number of conversations can detect."""
        return " ".join(filter(None, ("In brackets: 95% intervals.", detection_limits(self.result))))

    @property
    def close_note(self) -> str:
        """Which drops this number of conversations can detect, if more of them could change a verdict."""
        rates = [each.pass_rate for each in self.result.scenarios if each.pass_rate]
        is_close = any(0 < rate.value < 1 for rate in rates)
        return (detection_limits(self.result) or "") if is_close else ""

    @cached_property
    def changed(self) -> Mapping[tuple[str, str, str], str]:
        """`ScenarioReport.key` → how the verdict on a scenario that did not pass has changed."""
        changes = self.result.changes
        lists = (("still failing", changes.still_failing), (NEWLY_FAILING, changes.newly_failing))
        return {(each.name, each.agent, each.file): text for text, group in lists for each in group}

    @property
    def changes_text(self) -> str:
        """Count the changes since the last run of the same selection; "" without any."""
        changes = self.result.changes
        numbers = (
            (len(changes.newly_failing), NEWLY_FAILING),
            (len(changes.newly_fixed), "newly fixed"),
            (len(changes.still_failing), "still failing"),
        )
        return ", ".join(f"{number:,} {what}" for number, what in numbers if number)

    @cached_property
    def questions(self) -> list[QuestionedVerdicts]:
        return questioned_verdicts(self.result)

    @cached_property
    def notes(self) -> list[QuestionedVerdicts]:
        notes = (warning for warning in self.result.verdict_warnings if warning.note)
        return [QuestionedVerdicts(*each) for each in by_code(notes).items()]

    def mistakes_in_mocks(self, scenario: ScenarioReport) -> list[str]:
        """Return the warnings about what a scenario's mocks raised by mistake."""
        raised = (each for each in self.result.verdict_warnings if each.code == WarningCode.MOCK_RAISED)
        return [each.message for each in raised if (each.scenario, each.agent) == scenario.key[:2]]

    @property
    def errors(self) -> list[tuple[ScenarioReport, UniqueError]]:
        """The deduplicated errors of all scenarios, most severe first."""
        errors = [(each, group) for each in self.scenarios for group in each.result.errors]
        return sorted(errors, key=lambda error: -error[1].severity)

    @property
    def violations(self) -> list[tuple[ScenarioReport, Reason]]:
        """The missed thresholds of all scenarios."""
        return [
            (each, reason)
            for each in self.scenarios
            for reason in each.result.verdict.reasons
            if reason.kind in VIOLATIONS
        ]

    @property
    def warnings(self) -> list[tuple[ScenarioReport, str]]:
        """The warnings of scenarios that question no verdict."""
        return [(each, text) for each in self.scenarios for text in each.result.warnings]


@dataclass(frozen=True)
class ScenarioReport:
    """The content of reports about a scenario with one agent."""

    result: ScenarioResult
    several_agents: bool = False

    @property
    def status(self) -> Status:
        return self.result.verdict.status

    @property
    def label(self) -> str:
        """The scenario's name, with its agent if there are several. A file that did not load has no agent."""
        result = self.result
        return f"{result.name} ({result.agent})" if self.several_agents and result.agent else result.name

    @property
    def location(self) -> str:
        return f"{self.result.file}:{self.result.line}" if self.result.line else self.result.file

    @property
    def key(self) -> tuple[str, str, str]:
        """A unique key; the name alone is not unique, because two files may define the same one."""
        return self.result.name, self.result.agent, self.result.file

    @property
    def unjudged_causes(self) -> list[ScenarioCause]:
        """The causes of the scenario's status that need no judge."""
        from agentest.domain.root_causes import scenario_causes

        errored = self.status is Status.ERRORED
        return [each for each in scenario_causes(self.result) if (each.kind is CauseKind.ERRORED) is errored]

    @property
    def causes(self) -> list[tuple[str, str]]:
        """Id and title of each cause of the scenario's status; the first one heads it in every report."""
        from agentest.domain.root_causes import normalized_label, root_cause_id

        judged = (each.label for each in self.result.errors if each.fails)
        return [
            *((root_cause_id(each.kind, each.pattern), each.title) for each in self.unjudged_causes),
            *((root_cause_id(CauseKind.JUDGED, normalized_label(label)), label) for label in judged),
        ]

    @property
    def headline(self) -> str:
        """What kept the scenario from passing, in one short row."""
        title = next((title for _, title in self.causes), "")
        reasons = (each for each in self.result.verdict.reasons if each.status is self.status)
        others = (shortened(each.message.split("\n", 1)[0]) for each in reasons)
        return title or next(others, str(self.status))

    @property
    def reasons(self) -> list[Reason]:
        """The reasons for the scenario's status."""
        return [reason for reason in self.result.verdict.reasons if reason.status is self.status]

    @cached_property
    def reasons_by_conversation(self) -> dict[str, list[Reason]]:
        """Conversation id → its reasons. Reasons that belong to no single conversation are missing."""
        reasons: dict[str, list[Reason]] = {}
        for reason in self.result.verdict.reasons:
            if reason.conversation_id is not None:
                reasons.setdefault(reason.conversation_id, []).append(reason)
        return reasons

    def unexplained(self, conversation: ConversationResult) -> Iterator[tuple[str, str]]:
        """Yield label and text for a conversation's end, and for goal and criteria without a reason."""
        id = conversation.conversation.conversation_id
        reasons = self.reasons_by_conversation.get(id, [])
        if goal := unreached_goal(conversation):
            yield "ended: ", end_in_words(conversation.conversation)
            if not any(reason.kind is ReasonKind.GOAL for reason in reasons):
                yield "goal: ", goal
        criteria = [reason.criterion for reason in reasons]
        for each in conversation.criteria:
            if each.result is not CriterionOutcome.MET and each not in criteria:
                yield "" if each.required else "not required: ", criterion_message(each)


@dataclass(frozen=True, slots=True)
class CauseBlock:
    """Scenarios that did not pass for one cause; the first one is the example."""

    headline: str
    scenarios: Sequence[ScenarioReport]
    cause: RootCause | None  # None if only the verdict's reasons tell why

    @property
    def status(self) -> Status:
        return self.scenarios[0].status

    @property
    def extent(self) -> str:
        """The number of scenarios, and of their conversations if there are more and all are here."""
        cause = self.cause
        conversations = cause.conversations if cause and cause.scenarios <= len(self.scenarios) else 0
        more = f", {count(conversations, 'conversation')}" if conversations > len(self.scenarios) else ""
        return count(len(self.scenarios), "scenario") + more


def and_more(others: Sequence[object], noun: str) -> str:
    """Return a suffix that counts further ones of the same kind; "" without any."""
    return f" (and {count(len(others), f'more {noun}')})" if others else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Regression:
    """A scenario that is worse than before."""

    name: str
    agent: str
    file: str
    line: int
    change: str
    message: str  # a description of the change

    @property
    def place(self) -> tuple[str, str, str]:
        return self.name, self.agent, self.file


class ComparedRun(Protocol):
    """A run that has been compared by the time its end is reported."""

    def markdown(self) -> Sequence[str]:
        """Return the comparisons as Markdown, for a job's summary."""

    def regressions(self) -> Sequence[Regression]:
        """Return the scenarios that broke or regressed against a baseline."""


def end_in_words(conversation: Conversation) -> str:
    """Describe how a conversation ended; after an error, whether it was the agent's."""
    failure = conversation.failure
    return _ENDED_BY[failure.blame] if failure else IN_WORDS[conversation.ending]


def score_reason(score: Score) -> str:
    """Format a score's reason in one row, preceded by the goal's outcome or the evidence."""
    marks = [str(mark) for mark in (score.outcome, score.evidence) if mark is not None]
    return ": ".join([*marks, shortened(score.reason, _REASON_CHARS)])


def unreached_goal(result: ConversationResult) -> str | None:
    """Describe a goal that was not reached or was reached wrongly, with the reason; None otherwise."""
    outcome = goal_outcome(result)
    if outcome is None or outcome is GoalOutcome.REACHED:
        return None
    return f"{outcome}: {shortened(goal_reason(result), _REASON_CHARS)}"


def criterion_name(criterion: CriterionResult | CriterionTotals) -> str:
    """Return the criterion's text, with a note if the criterion is optional."""
    return criterion.text if criterion.required else f"{criterion.text} (not required)"


def criterion_counts(criterion: CriterionTotals) -> str:
    """Format the number of conversations that met the criterion."""
    return f"met {criterion.met}/{criterion.judged}"


def criterion_example(criterion: CriterionTotals, *, reason: bool = True) -> str:
    """Describe the first conversation with the worst outcome; "" if all conversations met the criterion."""
    if criterion.example is None:
        return ""
    conversation_id, result = criterion.example
    why = f": {shortened(result.reason, _REASON_CHARS)}" if reason else ""
    turn = [] if result.turn_index is None else [turn_name(result.turn_index)]
    where = turn if turn and criterion.judged == 1 else [conversation_id, *turn]
    return f"{result.result} in {', '.join(where)}{why}"


def cause_badness(cause: RootCause) -> str:
    """Return the severity of a root cause, or that it is unknown."""
    return "errored" if cause.kind is CauseKind.ERRORED else cause.severity.label


_SHOWN = 3


class QuestionedVerdicts:
    """All warnings with one code.

    Attributes:
        each: the scenarios in question and the reason, with the first of the warnings that share it.
        scenarios: the number of scenarios in question.
    """

    def __init__(self, code: WarningCode, warnings: Sequence[VerdictWarning]) -> None:
        self.code = code
        by_message: dict[str, list[VerdictWarning]] = {}
        for warning in warnings:
            by_message.setdefault(warning.message, []).append(warning)
        self.each = [
            (f"{quoted_names(each.scenario for each in mine)}: {message}", mine[0])
            for message, mine in by_message.items()
        ]
        self.scenarios = len({(w.scenario, w.agent) for w in warnings})
        self.head = f"{code} ({count(self.scenarios, 'scenario')})"

    def rows(self, most: int = _SHOWN) -> list[str]:
        """Return the first messages, one row each, and the number of others."""
        left = len(self.each) - most
        more = [f"… {left:,} more in results.json (`summary.warnings`)"] if left > 0 else []
        return [*(text for text, _ in self.each[:most]), *more]


def questioned_verdicts(result: RunResult) -> list[QuestionedVerdicts]:
    """Return the warnings that question the verdicts of a run, grouped by code.

    In strict mode they are reasons for verdicts, which are shown with their scenarios.
    """
    warnings = (
        warning
        for each in result.scenarios
        if each.verdict_warnings
        and not any(reason.kind is ReasonKind.WARNING for reason in each.verdict.reasons)
        for warning in each.verdict_warnings
        if not warning.note
    )
    return [QuestionedVerdicts(*each) for each in by_code(warnings).items()]


def unfinished_text(result: RunResult) -> str:
    """Count unfinished scenarios in a sentence; "" if all finished.

    "12 of 40 scenarios did not run; 3 ran in part (7 of their 15 conversations)".
    """
    left = result.unfinished
    of_total = f" of {count(len(result.scenarios), 'scenario')}"
    if len(result.agents) > 1:
        of_total += ", with each agent,"
    begun = [scenario for scenario in left if scenario.totals.conversations or scenario.duration_ms]
    parts = []
    if untouched := len(left) - len(begun):
        parts.append(f"{untouched:,}{of_total} did not run")
        of_total = ""
    if begun:
        finished = sum(scenario.totals.conversations for scenario in begun)
        planned = sum(max(scenario.planned, scenario.totals.conversations) for scenario in begun)
        its = "its" if len(begun) == 1 else "their"
        parts.append(
            f"{len(begun):,}{of_total} ran in part ({finished:,} of {its} {planned:,} conversations)"
        )
    return "; ".join(parts)


def ended_early_text(result: RunResult) -> str:
    """Explain why the run ended early, and count unfinished scenarios; "" if it was complete."""
    if not result.interrupted and not result.stopped:
        return ""
    why = "Interrupted" if result.interrupted else f"Ended early ({result.stopped})"
    if result.lacks_conversations and not result.unfinished:
        return f"{why}: every scenario has its verdict, but not all of its conversations"
    return f"{why}: {unfinished_text(result) or 'all scenarios had finished'}"


def decided(result: ScenarioResult) -> str:
    """Describe when `repeat` decided the verdict, if it did; "" without `repeat`."""
    repeat, finished = result.repeat, result.totals.conversations
    if repeat is None or any(reason.kind is ReasonKind.INTERRUPTED for reason in result.verdict.reasons):
        return ""
    progress = f"{finished} of at most {repeat.max}"
    if result.decided_after is not None:
        return f"decided after {progress}"
    if result.verdict.status is Status.ERRORED:
        return f"{progress} held"
    if result.verdict.passed and not result.thresholds:
        return f"none failed in {progress}"
    return f"not decided after {progress}" + (
        ": the others could neither decide nor change it" if finished < repeat.max else ""
    )


_EXPECTED_RATE = 0.9
CONVERSATIONS_NEEDED = {0.6: 13, 0.7: 25, 0.8: 78, 0.85: 270}
"""Lower pass rate → the fewest conversations that distinguish it (`detectable_rate`), in ascending order."""
_ENOUGH_CONVERSATIONS = 2_000
"""This many conversations distinguish all of these rates, so larger numbers are not calculated."""
_SHOWN_K = (2, 3, 5, 10, 20, 50, 100)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """The number of passed conversations in a number of scenarios; `agent` is "" if there is only one."""

    agent: str
    rate: Figure
    scenarios: int
    all_pass: Mapping[int, float]  # k → pass^k, for selected k

    @property
    def facts(self) -> list[str]:
        """Return the pass rate with n, and each pass^k."""
        where = f" in {self.scenarios:,} scenarios" if self.scenarios > 1 else ""
        rate = f"{rate_text(self.rate)} (n {self.rate.n:,}{where})"
        return [rate, *(f"pass^{k} {percent(value)}" for k, value in self.all_pass.items())]


def percent(share: float) -> str:
    """Format a share as a percentage. Only exact values appear as 0 % and 100 %."""
    if share <= 0 or share >= 1 or 0.01 <= share < 0.995:
        return f"{share:.0%}"
    return "<0.1%" if share < 0.001 else ">99.9%" if share >= 0.9995 else f"{share:.1%}"


def rate_text(rate: Figure) -> str:
    """Format a share with its interval."""
    if rate.low is None or rate.high is None:
        return percent(rate.value)
    low, high = percent(rate.low), percent(rate.high)
    return f"{percent(rate.value)} [{low.removesuffix('%')}–{high}]"


def passed_text(result: ScenarioResult) -> str:
    """Format the pass rate of a scenario; "" for at most one decided conversation."""
    rate = result.pass_rate
    if rate is None or rate.n < 2:
        return ""
    known = "" if rate.n == result.totals.conversations else f" of the {rate.n:,} that passed or failed"
    return f"{rate_text(rate)}{known}"


def interval_text(figure: Figure | None) -> str:
    """Format the interval of an average, with a leading space; "" if unknown."""
    if figure is None or figure.low is None or figure.high is None:
        return ""
    return f" [{figure.low:.2f}, {figure.high:.2f}]"


def detection_limits(result: RunResult) -> str | None:
    """Explain which drops this number of conversations can detect; None for at most one per scenario."""
    several = [s for s in result.scenarios if s.pass_rate and s.pass_rate.n > 1]
    if not several:
        return None
    # `repeat` may need few conversations to decide.
    sizes = {s.repeat.max if s.repeat else s.pass_rate.n if s.pass_rate else 0 for s in several}
    least, most = min(sizes), max(sizes)
    from agentest.support.statistics.sequential import detectable_rate

    rate = detectable_rate(min(least, _ENOUGH_CONVERSATIONS), _EXPECTED_RATE) or 0.0
    most_text = "" if least == most else f" to {most:,}"
    text = f"With {least:,}{most_text} conversations per scenario, drops from {percent(_EXPECTED_RATE)} to "
    text += f"{int(rate * 100)}% are detectable."
    if (missed := next((other for other in CONVERSATIONS_NEEDED if other > rate), None)) is None:
        return text
    is_recorded = any(c.conversation.ending is Ending.RECORDED for s in several for c in s.conversations)
    option = "--sample" if is_recorded else "--conversations"  # sessions that `agentest judge` has read
    option = "--repeat" if all(s.repeat for s in several) else option
    number = CONVERSATIONS_NEEDED[missed]
    value = f"{min(3, number)}..{number}" if option == "--repeat" else f"{number}"
    return f"{text} Use {option} {value} to detect a drop to {percent(missed)}."


def _rates(agent: str, scenarios: Sequence[ScenarioResult]) -> Rates | None:
    rate = run_pass_rate(scenarios)
    if rate is None:
        return None
    all_pass = run_pass_hat_k(scenarios, _SHOWN_K[-1])
    return Rates(
        agent=agent,
        rate=rate,
        scenarios=len({(s.file, s.name) for s in scenarios if s.pass_rate}),
        all_pass={k: all_pass[k] for k in _SHOWN_K if k in all_pass},
    )
