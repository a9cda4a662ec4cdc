"""The conversations that workers are at: what becomes of them, and of their places among all."""

from __future__ import annotations

from anyio.abc import TaskGroup

from agentest.workers.members import Holding, Member, Place, Roster
from agentest.workers.messages import (
    ConversationDone,
    ConversationIsHeld,
    OfConversation,
    PlaceLeft,
    PlaceWanted,
    TurnClosed,
)


class UnderWay:
    """Receives how conversations go.

    Args:
        tasks: where those wait that have left their places.
    """

    def __init__(self, roster: Roster, tasks: TaskGroup) -> None:
        self._roster = roster
        self._tasks = tasks

    def receive(self, member: Member, message: OfConversation) -> None:
        """Handle a message of this worker. One of a conversation that the run has given up says nothing."""
        if one := member.holdings.get(message.hold):
            self._handle(member, message, one)

    def _handle(self, member: Member, message: OfConversation, one: Holding) -> None:
        match message:
            case TurnClosed():
                one.ongoing.on_turn(
                    message.conversation_id, message.turn_index, handed_over=message.handed_over
                )
            case ConversationIsHeld() if one.place.had.is_set():
                one.ongoing.on_held()
            case ConversationIsHeld():
                self._roster.lose(one.place)
                self._tasks.start_soon(_leave_later, one)
            case PlaceLeft():
                one.place = Place.left()  # now: that it is wanted may be told in the same moment
                self._tasks.start_soon(self._wait_outside, member, message.hold, one, one.place)
            case PlaceWanted():
                self._roster.want_place(member, message.hold, one.place)
            case ConversationDone() if not one.done.done():
                one.done.set_result(message)

    async def _wait_outside(self, member: Member, hold: int, one: Holding, place: Place) -> None:
        async with one.ongoing.outside():
            await place.wanted.wait()
        self._roster.has_place(member, hold, place)


async def _leave_later(one: Holding) -> None:
    """It went on in another's place, and leaves its own when it has got it: others count on that."""
    await one.place.had.wait()
    one.ongoing.on_held()
