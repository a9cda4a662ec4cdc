"""What calls to models took, counted where the run is: workers send it, each time at once.

So nothing is lost with a worker that dies, and nothing counts twice: no other message carries usage.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from agentest.domain.results import ModelUsage
from agentest.models.port import CallKey, Ledger
from agentest.models.recording.answers import MeasuringLedger
from agentest.workers.links import Send


@dataclass(frozen=True, slots=True)
class Used:
    """From a worker: what a call took, or had taken whose recorded answer was given."""

    key: CallKey
    used: ModelUsage
    replayed: bool = False


class SendingLedger(MeasuringLedger):
    """A worker's ledger, which sends whatever is added to it."""

    def __init__(self, send: Send) -> None:
        super().__init__()
        self._send = send

    def add(self, key: CallKey, used: ModelUsage) -> None:
        super().add(key, used)
        self._send(Used(key, used))

    def add_replayed(self, key: CallKey, used: ModelUsage) -> None:
        super().add(key, used)
        self._send(Used(key, used, replayed=True))


class UsageDesk:
    """In the run's own process: adds what workers send to its ledger.

    A live call counts once it was made, also of a conversation that its worker took along when it died. What
    was replayed counts with the conversation, when it is done: held again, it is replayed again, and the
    whole run is to have taken what it took when it was recorded.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._replayed: defaultdict[tuple[str, int], list[Used]] = defaultdict(list)

    def receive(self, message: Used) -> None:
        key = message.key
        if message.replayed:
            self._replayed[key.scope, key.conversation].append(message)
        else:
            self._ledger.add(key, message.used)

    def done(self, scope: str, number: int) -> None:
        """The conversation is done: what was replayed for it counts."""
        for each in self._replayed.pop((scope, number), ()):
            self._ledger.add_replayed(each.key, each.used)

    def forget(self, scope: str, number: int) -> None:
        """The conversation was lost with its worker: it is held again, or has no answers."""
        self._replayed.pop((scope, number), None)
