"""An agent over HTTP with a form of its own: requests by templates, answers by paths.

    conversation  one conversation: setup, turns, teardown; everything that is kept of it
    plan          what is the same in all of them; `login`, which they share
    requests      templates → a request: address, headers, `bodies`
    browser       `cookies`, and redirects to results
    exchange      a request and its answer; `refusals`
    reading       JSON, events, lines or text → `pieces`
    gathering     what paths find in pieces: text, `calls`, errors, `usage`, values to keep (`sources`)

The agent runs its tools itself: calls that its answers tell of are observed, mocks do not apply.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from agentest.agents.http.conversation import HttpConversation
from agentest.agents.http.cookies import CookieJar
from agentest.agents.http.login import LoggedIn
from agentest.agents.http.plan import Plan, plan_of
from agentest.agents.port import Agent, AgentReply, Resources, TurnContext
from agentest.config.agents.http import HttpTemplateAgent
from agentest.domain.messages import Message


def open_agent(_: str, config: HttpTemplateAgent, resources: Resources) -> HttpClient:
    """The client of an agent over HTTP with a form of its own."""
    client = HttpClient(plan_of(config, resources))
    resources.closing.push_async_callback(client.close)
    return client


class HttpClient:
    """Opens conversations with one agent. Keeps nothing of any of them."""

    def __init__(self, plan: Plan) -> None:
        self.name = plan.config.name
        self._plan = plan

    @asynccontextmanager
    async def conversation(self) -> AsyncIterator[Agent]:
        """Who answers in one conversation: with cookies, a session and saved values of its own."""
        held = HttpConversation(self._plan)
        try:
            yield held
        finally:
            await held.close()

    async def reply(self, messages: Sequence[Message], ctx: TurnContext) -> AgentReply:
        """The agent's answer in a conversation that ends with it."""
        async with self.conversation() as held:
            return await held.reply(messages, ctx)

    async def close(self) -> None:
        """Make the requests `per: run` of `teardown`, if there was a conversation."""
        login = self._plan.steps.login.last
        if login is not None:
            await self._end(login)
        self._plan.note_how_many()

    async def _end(self, login: LoggedIn) -> None:
        jar = CookieJar(login.cookies)
        sender, saved = self._plan.open_sender(jar, for_setup=True), dict(login.saved)
        await self._plan.tear_down(self._plan.steps.run_teardown, lambda step: step.take(sender, jar, saved))
