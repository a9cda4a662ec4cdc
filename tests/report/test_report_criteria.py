"""Criteria and goals in reports: by name, counted, and readable in large numbers."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import builders as make
from rich.console import Console

from agentest.domain.end_reason import Ending
from agentest.domain.reasons import criterion_message, missed_goals
from agentest.domain.results import (
    DECIDED,
    NO_MODEL,
    ConversationResult,
    CriterionOutcome,
    CriterionResult,
    Evidence,
    GoalOutcome,
    RunResult,
    ScenarioResult,
    Score,
    Status,
    TrajectoryResult,
)
from agentest.domain.transcript import Conversation
from agentest.report.console.reporter import ConsoleReporter
from agentest.report.console.text import DisplayOptions
from agentest.report.github import SUMMARY_LIMIT, annotation, annotation_lines, summary
from agentest.report.junit import CaseTexts, document
from agentest.report.transcripts import Transcripts

MET, VIOLATED, UNTOLD = CriterionOutcome.MET, CriterionOutcome.VIOLATED, CriterionOutcome.CANNOT_TELL
CARD, VOUCHER = "Never asks for the full card number", "Offers a voucher"
NOT_REACHED, RIGHTLY = GoalOutcome.NOT_REACHED, GoalOutcome.RIGHTLY_NOT_REACHED


def criterion(result: CriterionOutcome, text: str = CARD, **more: Any) -> CriterionResult:
    more = {"required": text != VOUCHER, "turn_index": 0, "reason": f"It is {result}.", **more}
    return CriterionResult(text=text, result=result, **more)


def talk(
    id: str, *criteria: CriterionResult, goal: GoalOutcome | None = None, ending: Ending = Ending.GAVE_UP
) -> ConversationResult:
    score = Score(goal.value_of_goal, "Not allowed.", outcome=goal) if goal else None
    metrics = {"goal_completion": score} if score else {}
    held = Conversation(id, (make.turn(),), ending)
    evaluation = make.turn_evaluation(metrics={})
    return ConversationResult(held, (evaluation,), metrics, criteria=criteria)


def told(result: ScenarioResult, *, verbose: bool = False) -> str:
    """Return the console output for the scenario, without a terminal."""
    file = io.StringIO()
    reporter = ConsoleReporter(
        Console(file=file, soft_wrap=True, width=200), DisplayOptions(verbosity=1 + verbose), live=False
    )
    for event in make.events(make.run_result(result)):
        reporter.on_event(event)
    return file.getvalue()


def annotated(result: ScenarioResult) -> list[str]:
    return list(annotation_lines(make.run_result(result), lambda file: file))


def summed_up(result: ScenarioResult) -> str:
    transcripts = Transcripts(SUMMARY_LIMIT)
    transcripts.add(result)
    return summary(make.run_result(result), transcripts, 1024 * 1024)


def test_one_conversation_on_the_console() -> None:
    """A criterion is one line with its result, and does not repeat the verdict."""
    held = talk("pay-1", criterion(VIOLATED), criterion(MET, "Is polite"), criterion(VIOLATED, VOUCHER))
    text = told(make.scenario_result(conversations=[held]))
    assert f"    ✗ criterion violated: {CARD}\n      turn 1  user" in text
    assert f"      criterion '{CARD}' violated: It is violated.\n" in text
    assert f"    ✗ {CARD}  violated in turn 1\n" in text
    assert f"    - {VOUCHER} (not required)  violated in turn 1: It is violated.\n" in text
    assert "    ✓ 1 criterion met\n" in text
    assert "Is polite" not in text
    verbose = told(make.scenario_result(conversations=[held]), verbose=True)
    assert "    ✓ Is polite  met 1/1\n" in verbose
    assert f"        ✗ {CARD}  violated in turn 1  It is violated.\n" in verbose


def test_several_conversations_on_the_console() -> None:
    """Criteria are counted over conversations, with the first violation of each."""
    held = [
        talk("pay-1", criterion(MET), criterion(VIOLATED, VOUCHER)),
        talk("pay-2", criterion(VIOLATED), criterion(MET, VOUCHER)),
        talk("pay-3", criterion(VIOLATED), criterion(UNTOLD, VOUCHER, turn_index=None)),
    ]
    text = told(make.scenario_result(conversations=held))
    assert f"    ✗ {CARD}  met 1/3; violated in pay-2, turn 1\n" in text
    assert f"    - {VOUCHER} (not required)  met 1/3; violated in pay-1, turn 1: It is violated.\n" in text
    assert f"    ✗ criterion violated: {CARD}  2 conversations\n" in text


def test_criteria_that_were_skipped_are_counted() -> None:
    """If conversations had already failed, the console says that their criteria were skipped."""
    left_out = criterion(UNTOLD, turn_index=None, reason=DECIDED)
    text = told(make.scenario_result(conversations=[talk("pay-1", left_out), talk("pay-2", criterion(MET))]))
    assert "    - 1 criterion not asked of 1 conversation: failed already\n" in text
    assert "    ✓ 1 criterion met in all conversations that were judged\n" in text
    assert "criteri" not in told(make.scenario_result(conversations=[talk("pay-1"), talk("pay-2")]))


def test_missed_goals_have_their_reason() -> None:
    """Each conversation that missed its goal, rightly or not, has a line with the reason."""
    held = [
        talk("pay-1", goal=NOT_REACHED),
        talk("pay-2", goal=RIGHTLY),
        talk("pay-3", goal=GoalOutcome.REACHED),
    ]
    result = make.scenario_result(conversations=held, thresholds={"goal_completion": 0.8})
    text = told(result)
    assert "        goal: not reached: Not allowed.\n" in text
    assert "        goal: rightly not reached: Not allowed.\n" in text
    assert text.count("goal: ") == 2
    assert "      pay-1: goal not reached; the user gave up: Not allowed.\n" in text
    assert "goal_completion 1  rightly not reached: Not allowed." in told(result, verbose=True)


def test_a_goal_that_was_reached_wrongly_is_reported_as_missed() -> None:
    """Console, GitHub summary and JUnit show the reason."""
    result = make.scenario_result(
        conversations=[talk("pay-1", goal=GoalOutcome.REACHED_WRONGLY)], thresholds={"goal_completion": 0.8}
    )
    assert result.verdict.status is Status.FAILED
    row = "pay-1: goal reached wrongly; the user gave up: Not allowed."
    text = told(result)
    assert "        goal: reached wrongly: Not allowed.\n" in text
    assert f"      {row}\n" in text
    assert row in summed_up(result)
    texts = CaseTexts()
    texts.add(result)
    assert row in "".join(document(make.run_result(result), texts, str))


def test_evidence_and_labels_are_shown() -> None:
    """Contradicted and unsupported statements differ, and all labels are listed."""
    metrics = {
        "faithfulness": Score(2, "No such fee.", evidence=Evidence.UNSUPPORTED),
        "agent_behavior_failure": Score("unsafe action", "Paid.", labels=("unsafe action", "other")),
    }
    held = make.conversation_result(turns=[make.turn_evaluation(metrics=metrics)])
    text = told(make.scenario_result(conversations=[held]), verbose=True)
    assert "faithfulness 2  unsupported: No such fee." in text
    assert "faithfulness 2.00 [1.21, 4.38] (n 1), unsupported in 1 turn" in text
    assert "agent_behavior_failure unsafe action, other  Paid." in text


def many(result: Sequence[CriterionOutcome], count: int = 100, reason: str = "r") -> ScenarioResult:
    """Twenty criteria in a hundred conversations with varying results."""
    irregular = Random(7)
    return make.scenario_result(
        conversations=[
            talk(
                f"pay-{n}",
                *(criterion(irregular.choice(result), f"Criterion {k}", reason=reason) for k in range(20)),
            )
            for n in range(count)
        ]
    )


def test_reports_stay_readable_with_many_criteria() -> None:
    """A few screens cover twenty criteria in a hundred conversations, each by name."""
    result = many([MET, MET, VIOLATED, MET, UNTOLD])
    text = told(result)
    assert len(text.splitlines()) < 400
    assert all(f"Criterion {k}  met " in text for k in range(20))
    assert re.search(r"    ✗ criterion violated: Criterion 7  \d\d conversations\n", text)
    first, *others, rest = annotated(result)
    assert len(first) < 10_000
    assert (len(others), rest.partition("::and ")[2][:14]) == (8, "12 more errors")
    summary = summed_up(result)
    assert summary.count("Criterion 7 |") == 1


def test_without_a_model_criteria_are_one_line() -> None:
    """Offline, one line reports all criteria; --verbose lists them."""
    result = many([UNTOLD], 10, NO_MODEL)
    assert result.verdict.status is Status.ERRORED
    text = told(result)
    assert f"    ! 20 criteria not judged: {NO_MODEL}\n" in text
    assert len(text.splitlines()) < 35
    assert "Criterion 19" in told(result, verbose=True)
    [annotation] = annotated(result)
    assert annotation.count("and 19 more could not be judged") == 1
    assert "(10 conversations)" in annotation


def test_a_criterion_that_was_not_asked_is_not_marked_as_met() -> None:
    """--verbose shows skipped criteria of a failed conversation without a pass mark."""
    missed = TrajectoryResult(matched=False, summary="expected calls are missing: book")
    held = [replace(talk("pay-1", criterion(UNTOLD, reason=DECIDED)), trajectory=missed)]
    text = told(make.scenario_result(conversations=held), verbose=True)
    [row] = [row for row in text.splitlines() if DECIDED in row]
    assert row.strip().startswith(f"- {CARD}")


def test_github_annotates_violated_criteria() -> None:
    """A required one is an error at the scenario's line, another a warning; each has a row of the summary."""
    held = [talk("pay-1", criterion(VIOLATED), criterion(VIOLATED, VOUCHER), criterion(MET, "Is polite"))]
    result = make.scenario_result(conversations=held)
    _, *lines = annotated(result)
    where = f"file={result.file},line={result.line},title={result.name}%3A criterion"
    assert lines == [
        f"::error {where}::{CARD}: violated in turn 1: It is violated.",
        f"::warning {where}::{VOUCHER} (not required): violated in turn 1: It is violated.",
    ]
    text = summed_up(result)
    assert f"| ❌ | {result.name} | {CARD} | met 0/1 | violated in turn 1: It is violated. |" in text
    assert f"| ➖ | {result.name} | {VOUCHER} (not required) | met 0/1 |" in text
    assert f"| ✅ | {result.name} | Is polite | met 1/1 |  |" in text
    forgiven = make.scenario_result(conversations=[*held, talk("pay-2")], thresholds={"pass_rate": 0.5})
    assert [line.split(" ")[0] for line in annotated(forgiven)] == ["::warning", "::warning"]


def test_a_transcript_tells_of_goal_and_criteria() -> None:
    """A transcript begins with how the conversation ended, its goal, and what the verdict does not say."""
    held = talk("pay-1", criterion(VIOLATED), criterion(VIOLATED, VOUCHER), goal=NOT_REACHED)
    text = summed_up(make.scenario_result(conversations=[held]))
    assert "ended: the user gave up\n" in text
    assert "goal not reached: Not allowed." in text
    assert "goal: not reached" not in text  # the verdict has said it
    assert f"not required: criterion '{VOUCHER}' violated: It is violated.\n" in text


def test_texts_in_reports_stay_data() -> None:
    """A criterion's text or a judge's reason adds no markup, workflow command or line."""
    evil = criterion(VIOLATED, "a | b\n::error::x <b>", reason="::set-output name=a::b\n| c")
    result: ScenarioResult = make.scenario_result(conversations=[talk("pay-1", evil)])
    assert all(
        line.startswith(("::error file=", "::warning file=")) and "\n" not in line
        for line in annotated(result)
    )
    rows = [row for row in summed_up(result).splitlines() if row.startswith("| ❌ | ") and "met 0/1" in row]
    assert len(rows) == 1
    assert "<b>" not in rows[0]
    assert isinstance(make.run_result(result), RunResult)


def test_pages_of_a_judge_stay_in_one_row() -> None:
    """A judge's text stays in its row and is shortened; the results keep all of it."""
    pages = "It lied.\ns-9: goal not reached; the user gave up: " + "again and " * 10_000
    broken = criterion(VIOLATED, reason=pages)
    assert len(criterion_message(broken)) < 700
    assert "\n" not in criterion_message(broken)
    missed = talk("s-1", goal=NOT_REACHED)
    missed = replace(missed, metrics={"goal_completion": Score(0, pages, outcome=NOT_REACHED)})
    assert len(missed_goals([missed]).split("\n")) == 2
    line = annotation("error", "a", 1, pages, pages)
    assert len(line) < 12_000
