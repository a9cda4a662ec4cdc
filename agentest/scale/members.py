"""The workers of a run, as its own process knows them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio

from agentest.run.holding import Ongoing
from agentest.scale.fleet import Connection
from agentest.scale.lease_desk import LeaseCounter
from agentest.scale.messages import ConversationDone

if TYPE_CHECKING:  # imported where an agent has servers beside it
    from agentest.scale.guests import Guests


@dataclass(slots=True, eq=False)
class Holding:
    """A conversation that a worker is at."""

    ongoing: Ongoing
    done: asyncio.Future[ConversationDone]
    wants_place: anyio.Event = field(default_factory=anyio.Event)


@dataclass(slots=True, eq=False)
class Member:
    """A worker as the run sees it."""

    number: int
    """From 1."""
    connection: Connection = field(init=False)
    ready: bool = False
    idle: bool = False
    """Whether what a stop has ended is over."""
    ended: bool = False
    """Whether it has sent its last message: that it goes is no surprise."""
    gone: anyio.Event = field(default_factory=anyio.Event)
    reserved: bool = False
    """Whether it is to hold one conversation alone."""
    is_worse: bool = False
    """Whether its own agent died: it gets what no other can hold, or it would fail all, being the fastest."""
    holdings: dict[int, Holding] = field(default_factory=dict)
    units: set[str] = field(default_factory=set)
    """Scopes of units of which it has held conversations, until these have finished."""
    leases: LeaseCounter | None = None
    guests: Guests | None = None
    """Its conversations whose agents have servers beside them."""
