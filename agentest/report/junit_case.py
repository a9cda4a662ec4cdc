"""A scenario's text in a JUnit report: what the console says of it, and the transcripts of what failed."""

from __future__ import annotations

from typing import Final

from agentest.domain.results import Reason, ScenarioResult
from agentest.report import github_selection as select
from agentest.report.console.scenario import scenario_lines
from agentest.report.console.text import Look
from agentest.report.github_markdown import cut
from agentest.report.stories import Transcripts, byte_size, scenario_key
from agentest.report.xml_text import in_rows
from agentest.support.text import count

MIB: Final = 1024 * 1024
TEXT_ROOM: Final = 6 * MIB
STORY_ROOM: Final = 4 * MIB
"""With everything else, a report stays below the 30 MB that GitLab takes."""
_CASE_ROOM: Final = 50_000
"""With its last transcript a case stays below the 100,000 characters of which Jenkins drops the middle."""
_TEXT_CHARS: Final = 20_000
_MESSAGE_CHARS: Final = 1_000


class CaseTexts:
    """The texts of scenarios, kept from when each finished: its conversations are let go afterwards.

    Args:
        text_room: bytes of XML for what the console says.
        story_room: the same for transcripts of what failed, and for those of what errored.
    """

    def __init__(self, text_room: int = TEXT_ROOM, story_room: int = STORY_ROOM) -> None:
        self.several_agents = False
        self._texts: dict[tuple[str, str, str], str] = {}
        self._room = text_room
        self._transcripts = Transcripts(story_room, _CASE_ROOM, size=_xml_size)

    def add(self, scenario: ScenarioResult) -> None:
        """Write the texts of a scenario that has just finished."""
        if scenario.verdict.status not in select.UNDONE:
            return
        text = in_rows(_shortened(self._console(scenario)))
        if byte_size(text) <= self._room:
            self._room -= byte_size(text)
            self._texts[scenario_key(scenario)] = text
        self._transcripts.add(scenario)

    def failure(self, scenario: ScenarioResult) -> str:
        """What the console says of the scenario, as XML; the reasons alone where there was no room for it."""
        told = self._texts.get(scenario_key(scenario))
        return in_rows(_shortened(_messages(scenario))) if told is None else told

    def output(self, scenario: ScenarioResult) -> str:
        """The transcripts of conversations that did not pass, and how many are left out, as XML."""
        parts = [f"{story.conversation_id}\n{story.text}\n" for story in self._transcripts.of(scenario)]
        if missing := self._transcripts.missing(scenario):
            parts.append(f"… {count(missing, 'more transcript')} left out: results.json has them")
        return in_rows("\n".join(parts))

    def _console(self, scenario: ScenarioResult) -> str:
        lines = scenario_lines(scenario, Look(several_agents=self.several_agents))
        return "\n".join(line.plain for line in lines)


def message(scenario: ScenarioResult) -> tuple[str, str]:
    """Type and message: the first reason that made the scenario what it is, and how many more there are.

    The type is no bare word: GitLab's parser takes `file` or `array` for the kind of the element's text.
    """
    status, reasons = scenario.verdict.status, _reasons(scenario)
    if not reasons:
        return f"agentest.{status}", str(status)
    first = _placed(reasons[0]).split("\n", 1)[0]
    more = f" (and {count(len(reasons) - 1, 'more reason')})" if reasons[1:] else ""
    return f"agentest.{reasons[0].kind}", cut(first, _MESSAGE_CHARS) + more


def _reasons(scenario: ScenarioResult) -> list[Reason]:
    return [reason for reason in scenario.verdict.reasons if reason.status is scenario.verdict.status]


def _messages(scenario: ScenarioResult) -> str:
    return "\n".join(map(_placed, _reasons(scenario))) or str(scenario.verdict.status)


def _placed(reason: Reason) -> str:
    return f"{reason.conversation_id}: {reason.message}" if reason.conversation_id else reason.message


def _shortened(text: str) -> str:
    left_out = len(text) - _TEXT_CHARS
    return text if left_out <= 0 else f"{text[:_TEXT_CHARS]}\n… {left_out:,} more characters left out"


def _xml_size(text: str) -> int:
    return byte_size(in_rows(text))
