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

from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from agentest.agents.call_mapping import ToldCall, as_tool_calls, fresh, note_untold
from agentest.agents.http.cookies import CookieJar
from agentest.agents.http.exchange import Unauthorized, exchanged
from agentest.agents.http.extraction import SESSION, Gathering
from agentest.agents.http.plan import Job, Plan, plan_of
from agentest.agents.http.reader import AnswerReader
from agentest.agents.http.requests import RequestTemplate
from agentest.agents.http.session import LoggedIn, SetUpStep, secrets_of
from agentest.agents.http_sender import HttpAnswer
from agentest.agents.placeholders import TurnValues
from agentest.agents.port import Agent, AgentReply, NoReply, Resources, TurnContext
from agentest.agents.reply_paths import note_failure, note_place
from agentest.config.agents.http import HttpTemplateAgent
from agentest.domain.messages import Message
from agentest.domain.transcript import ToolCall
from agentest.support.errors import AgentError, CannotSend
from agentest.support.http.client import DirectResponse
from agentest.support.templates import Values


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


@dataclass(slots=True)
class _Turn:
    """What has come in one turn, kept where an error cannot lose it."""

    messages: Sequence[Message]
    ctx: TurnContext
    calls: tuple[ToldCall, ...] = ()
    retries: int = 0
    latency_ms: float = 0.0
    first_token_ms: float | None = None


class HttpConversation:
    """Talks to the agent in one conversation; everything that is kept of it is kept here."""

    def __init__(self, plan: Plan) -> None:
        self.name = plan.config.name
        self._plan = plan
        self._jar = CookieJar()
        self._sender = plan.open_sender(self._jar)
        self._setup_sender = plan.open_sender(self._jar, for_setup=True)
        self._reader = AnswerReader(plan.paths)
        self._logged_in: LoggedIn | None = None
        self._is_set_up = False
        self._saved: dict[str, Any] = {}
        self._last: _Turn | None = None
        self._told: tuple[ToldCall, ...] = ()

    async def reply(self, messages: Sequence[Message], ctx: TurnContext) -> AgentReply:
        """The agent's answer to the last message of the user. Raises NoReply, CannotSend, HeldUp.

        The first turn makes the requests of `setup`. `latency_ms` is that of the turn's own request, and of
        the polls for its job.
        """
        turn = self._last = _Turn(messages, ctx)
        await self._set_up(turn)
        try:
            gathering = await self._ask(turn)
            text = gathering.text()
        except NoReply as error:
            raise NoReply(str(error), turn.retries + error.retries, self._observed(turn)) from None
        except AgentError as error:
            raise NoReply(str(error), turn.retries, self._observed(turn)) from None
        if gathering.guessed:
            note_place(self._plan.notes, gathering.guessed)
        if not self._plan.paths.tool_calls:
            note_untold(self._plan.notes, gathering.answer)
        if not self._plan.paths.error:
            note_failure(self._plan.notes, gathering.answer)
        self._note_nothing_ties(ctx.turn_index)
        observed = self._observed(turn)
        self._told = (*self._told, *fresh(turn.calls, self._told))
        return AgentReply(
            text,
            usage=gathering.usage,
            latency_ms=turn.latency_ms,
            retries=turn.retries,
            observed=observed,
            first_token_ms=turn.first_token_ms,
        )

    async def _ask(self, turn: _Turn) -> Gathering:
        """What the agent has answered: to the request itself, or as the result of its job."""
        job = self._plan.job
        gathering = await self._answer(self._plan.turn, turn)
        self._keep(gathering, None if job is None else job.needs)
        if job is None:
            return gathering
        gathering = await self._result(job, turn)
        self._keep(gathering, None)
        return gathering

    async def _result(self, job: Job, turn: _Turn) -> Gathering:
        timeout_s, began_ms = self._plan.resources.timeout_s, turn.latency_ms
        result, took_ms = await job.polling.result(
            lambda: self._answer(job.request, turn), timeout_s - began_ms / 1000, timeout_s
        )
        turn.latency_ms = began_ms + took_ms
        return result

    async def _answer(self, request: RequestTemplate, turn: _Turn) -> Gathering:
        """The answer to a request; after a 401 it is sent again with a new login, once."""
        gathering = Gathering(self._plan.paths)
        try:
            answered = await self._answered(request, turn, gathering)
        finally:
            turn.calls = gathering.calls.united_with(turn.calls)
        turn.latency_ms += answered.latency_ms
        turn.retries += answered.retries
        turn.first_token_ms = turn.first_token_ms or answered.first_token_ms
        return gathering

    async def _answered(
        self, request: RequestTemplate, turn: _Turn, gathering: Gathering
    ) -> HttpAnswer[None]:
        async def read(response: DirectResponse) -> None:
            await self._reader.read(response, gathering)
            if self._plan.job is None:
                gathering.text()  # an answer without a reply is told here, with what would fit it

        try:
            return await exchanged(self._sender, self._filled(request, turn), read)
        except Unauthorized as error:
            if not await self._logged_in_again():
                raise
            turn.retries += error.retries
            return await exchanged(self._sender, self._filled(request, turn), read)

    def _observed(self, turn: _Turn) -> tuple[ToolCall, ...]:
        return as_tool_calls(fresh(turn.calls, self._told), turn.ctx.turn_index)

    # What is kept, and stands for placeholders.

    def _filled(self, request: RequestTemplate, turn: _Turn) -> Any:
        values, absent = self._values(turn)
        return request.filled(values, absent)

    def _values(self, turn: _Turn) -> tuple[Values, frozenset[str]]:
        """The values of placeholders, and the names that only an answer of the agent will give one."""
        absent = self._plan.paths.kept.names - self._saved.keys()
        shared = self._logged_in.saved if self._logged_in else {}
        values = TurnValues(turn.messages, turn.ctx, {**shared, **self._saved})
        return _Known(values, absent), absent

    def _keep(self, gathering: Gathering, needed: Collection[str] | None) -> None:
        """Keep the session's id and what `save` names. Raises NoReply for what is `needed` and lacking.

        Args:
            needed: names; None: all of them.
        """
        sources = self._plan.paths.kept
        kept = {**gathering.kept, **sources.in_jar(self._jar)}
        self._note_other_session(kept)
        self._saved |= kept
        for name in sorted(sources.names - self._saved.keys()):
            if needed is None or name in needed:
                key = "session" if name == SESSION and self._plan.config.session else f"save.{name}"
                raise NoReply(sources.missing(name, key, gathering.nothing_for))

    def _note_other_session(self, kept: dict[str, Any]) -> None:
        before = self._saved.get(SESSION)
        if self._plan.config.session and before is not None and kept.get(SESSION, before) != before:
            self._plan.notes.add(
                "session",
                "its answers change the id of the session (`session`), and the newest is sent; unless it "
                "gives each answer an id of its own, it has lost the session",
            )

    def _note_nothing_ties(self, turn_index: int) -> None:
        if turn_index > 0 and not self._plan.config.names_the_conversation and not list(self._jar):
            calls = " (This is about the user's messages; its tool calls are told apart by other means.)"
            self._plan.notes.add(
                "ties",
                "the user's messages are sent to it without an id of the session, and without those that "
                "came before, so in a second turn it cannot know what was said in the first: put "
                "{{session_id}} or {{messages}} into `body`, if it takes either."
                f"{calls if self._plan.config.beside else ''}",
            )

    # Before the first turn, and after the last.

    async def _set_up(self, turn: _Turn) -> None:
        """Make the requests of `setup`, in the first turn. Raises NoReply, CannotSend, HeldUp."""
        if self._logged_in is None:
            await self._log_in(0)
        if self._is_set_up:
            return
        for step in self._plan.steps.setup:
            kept = await self._set_up_step(step, turn)
            self._plan.resources.on_secret(secrets_of(kept))
            self._saved |= kept
        self._is_set_up = True

    async def _set_up_step(self, step: SetUpStep, turn: _Turn) -> dict[str, Any]:
        try:
            return await self._take(step, turn)
        except Unauthorized:
            if not await self._logged_in_again():
                raise
            return await self._take(step, turn)

    async def _take(self, step: SetUpStep, turn: _Turn) -> dict[str, Any]:
        values, absent = self._values(turn)
        return await step.take(self._setup_sender, self._jar, values, absent)

    async def _log_in(self, worn_out: int) -> None:
        self._logged_in = await self._plan.steps.login.newer_than(worn_out)
        self._jar.add(self._logged_in.cookies)

    async def _logged_in_again(self) -> bool:
        """Log in anew, if there is a login; whether there is."""
        if not self._plan.steps.login.can_be_repeated or self._logged_in is None:
            return False
        await self._log_in(self._logged_in.number)
        return True

    async def close(self) -> None:
        """Make the requests of `teardown`, if there is anything to end. Raises nothing but cancellation."""
        turn = self._last
        if turn is not None and self._is_set_up:
            await self._plan.tear_down(self._plan.steps.teardown, lambda step: self._take(step, turn))


class _Known:
    """Values of which some are still to come: only keys that hold nothing else are left out until then."""

    def __init__(self, values: Values, absent: frozenset[str]) -> None:
        self._values = values
        self._absent = absent

    def __getitem__(self, name: str) -> Any:
        if name not in self._absent:
            return self._values[name]
        raise CannotSend(
            f"{{{{{name}}}}} has no value before the agent has answered, and only keys that hold nothing "
            "else are left out until then: let a request of `setup` save it, or put it into a key of its own"
        )
