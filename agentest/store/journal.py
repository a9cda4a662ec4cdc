"""The journal: a file that gets a line as soon as a conversation has finished.

A killed run loses no finished conversation, and a long run does not need to retain them in memory. Each line
is a JSON object: a `RunLine`, then `ConversationLine` and `ScenarioLine` objects, and finally an `EndLine`,
unless the run was killed. Their contents have the same format as in results.json.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from agentest.domain.events import (
    ConversationFinished,
    Event,
    RunFinished,
    RunStarted,
    ScenarioAmended,
    ScenarioFinished,
)
from agentest.domain.results import ScenarioResult
from agentest.store.codec import CODECS
from agentest.store.conversations import conversation_json
from agentest.store.log_file import RawFile, RetryingLineFile, open_new
from agentest.store.run_results import mode_of, stored_agents, stored_head, stored_scenario
from agentest.store.shapes import (
    SCHEMA_VERSION,
    ConversationLine,
    EndLine,
    PlannedConversations,
    RunLine,
    ScenarioLine,
)
from agentest.support.json_text import encoded

_BODY = None
"""Stands for a conversation that is JSON text already."""
_AFTER_HEAD = b"null}"


class Journal:
    """Writes the journal, and reads conversations from it until it is closed.

    Lines that cannot be written, because the disk is full, wait in memory and are read from there.

    Args:
        warn: receives a message as soon as that happens, and another when it is over.
        opened: opens the file.
        on_begun: called once when the file has its first line and the conversations of a resumed run. It may
            raise OSError; then it is called again later.
    """

    name = "journal"

    def __init__(
        self,
        path: Path,
        warn: Callable[[str], None] = lambda _: None,
        opened: Callable[[Path], RawFile] = open_new,
        on_begun: Callable[[], None] = lambda: None,
    ) -> None:
        self.path = path
        self._file = RetryingLineFile(path, warn, opened)
        self._on_begun = on_begun
        self._began = False
        self._places: dict[tuple[str, str], array[int]] = {}
        """Scenario and agent → number, start and length of each conversation, in a flat array.

        Plain numbers, because nothing else grows with the run.
        """

    def on_event(self, event: Event) -> None:
        """Write the event, if the journal has a line for it."""
        match event:
            case RunStarted():
                self._begin(event)
            case ConversationFinished():
                self._keep(event)
            case ScenarioFinished():
                self._write(ScenarioLine(scenario=CODECS.write(stored_scenario(event.result))))
            case ScenarioAmended():
                self._write(ScenarioLine(scenario=CODECS.write(stored_scenario(event.result)), amended=True))
            case RunFinished():
                self._write(EndLine(run=CODECS.write(stored_head(event.result))))
        if self._file.used:
            self._note_begun()

    @property
    def held(self) -> int:
        """The number of conversations in the journal."""
        return sum(len(flat) for flat in self._places.values()) // 3

    def flush(self) -> bool:
        """Retry waiting lines. Returns True if all lines are in the file."""
        return self._file.flush() and not self._file.lost

    def conversations(self, scenario: ScenarioResult) -> Iterator[bytes]:
        """Yield the scenario's conversations in order, as JSON. Raises OSError, also if one is missing."""
        flat = self._places.get((scenario.name, scenario.agent), array("q"))
        places = sorted(zip(flat[::3], flat[1::3], flat[2::3], strict=True))
        held = scenario.totals.conversations
        if held and len(places) != held:
            raise OSError(f"{self.path} holds {len(places)} of {held} conversations of {scenario.name!r}")
        for _, start, length in places if held else ():
            yield self._file.read(start, length)

    def close(self) -> None:
        """Close the file. Conversations can no longer be read."""
        self._file.close()

    def _begin(self, event: RunStarted) -> None:
        self._write(
            RunLine(
                schema_version=SCHEMA_VERSION,
                version=event.version,
                started_at=event.started_at,
                agents=stored_agents(event.agents, event.sights),
                models=event.models,
                mode=mode_of(event.comparison),
                planned=tuple(
                    PlannedConversations(
                        scenario=name,
                        agent=agent,
                        conversations=count,
                        fingerprint=event.fingerprints.get((name, agent), ""),
                        usage=event.used.get((name, agent), {}),
                    )
                    for name, agent, count in event.planned
                ),
            )
        )
        for kept in event.kept:
            self._keep(kept)

    def _note_begun(self) -> None:
        """Call `on_begun` as soon as the beginning of the journal is in the file."""
        if self._began or not self.flush():
            return
        with suppress(OSError):  # the next event tries again
            self._on_begun()
            self._began = True

    def _keep(self, event: ConversationFinished) -> None:
        body = event.result
        if not isinstance(body, bytes):
            body = encoded(conversation_json(body, event.case, event.thresholds))
        line = ConversationLine(
            scenario=event.name, agent=event.agent, number=event.number, conversation=_BODY
        )
        head = encoded(CODECS.write(line)).removesuffix(_AFTER_HEAD)
        start = self._file.add(head + body + b"}\n")
        if start is not None:
            places = self._places.setdefault((event.name, event.agent), array("q"))
            places.extend((event.number, start + len(head), len(body)))

    def _write(self, line: RunLine | ScenarioLine | EndLine) -> None:
        self._file.add(encoded(CODECS.write(line)) + b"\n")
