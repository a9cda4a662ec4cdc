"""Client for HTTP agents with a custom API, described by request templates and response paths.

client      opens conversations; each runs setup, turns and teardown, and stores its state
plan        the compiled configuration, shared by all conversations
session     the requests of `setup` and `teardown`, and the shared login
requests    builds requests from templates
exchange    sends a request with the conversation's cookies, and explains error statuses
cookies     the cookies of one conversation
reader      reads JSON, server-sent events, JSON lines or text
extraction  applies the configured paths to a response: text, calls, errors, usage, saved values

The agent runs its tools itself: calls in its responses are observed, and mocks do not apply.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio

from agentest.agents.http.exchange import CookieJar, CookieSender, Unauthorized, send_with_status_errors
from agentest.agents.http.extraction import SESSION, AnswerPaths, ResponseExtraction, paths_of
from agentest.agents.http.reader import AnswerReader
from agentest.agents.http.requests import RequestTemplate, auxiliary_request, turn_request
from agentest.agents.http.session import Login, LoginResult, SetUpStep, secrets_of
from agentest.agents.http_sender import ErrorAdvisor, HttpAnswer, HttpSender
from agentest.agents.message_mapping import (
    ReportedCall,
    as_tool_calls,
    note_unmapped_calls,
    without_repeated_calls,
)
from agentest.agents.placeholders import TurnValues
from agentest.agents.port import Agent, AgentNotes, AgentReply, NoReply, Resources, TurnContext
from agentest.agents.reply_paths import note_failure, note_guessed_path
from agentest.config.agents.http import HttpTemplateAgent
from agentest.config.agents.http_requests import Poll, names_in
from agentest.domain.messages import Message
from agentest.domain.transcript import ToolCall
from agentest.support.deadlines import TimeLimit
from agentest.support.errors import AgentError, AgentestError, CannotSend
from agentest.support.http.client import DirectResponse
from agentest.support.json_path import JsonPath
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.templates import Values


def open_agent(_: str, config: HttpTemplateAgent, resources: Resources) -> HttpClient:
    """Return the client of an HTTP agent with a custom API."""
    client = HttpClient(compile_plan(config, resources))
    resources.closing.push_async_callback(client.close)
    return client


class HttpClient:
    """Opens conversations with one agent. Stores no conversation state."""

    def __init__(self, plan: HttpAgentPlan) -> None:
        self.name = plan.config.name
        self._plan = plan

    @asynccontextmanager
    async def conversation(self) -> AsyncIterator[Agent]:
        """Open a conversation with its own cookies, session and saved values."""
        conversation_client = HttpConversation(self._plan)
        try:
            yield conversation_client
        finally:
            await conversation_client.close()

    async def reply(self, messages: Sequence[Message], ctx: TurnContext) -> AgentReply:
        """Run a single turn in its own conversation."""
        async with self.conversation() as conversation_client:
            return await conversation_client.reply(messages, ctx)

    async def close(self) -> None:
        """Send the `teardown` requests with `per: run`, if there was any conversation."""
        login = self._plan.steps.login.last
        if login is not None:
            await self._end(login)
        self._plan.note_how_many()

    async def _end(self, login: LoginResult) -> None:
        jar = CookieJar(login.cookies)
        sender, saved = self._plan.open_sender(jar, for_setup=True), dict(login.saved)
        await self._plan.tear_down(self._plan.steps.run_teardown, lambda step: step.take(sender, jar, saved))


@dataclass(slots=True)
class _TurnResults:
    """The results of one turn so far. Stored outside the call, so that an error does not lose them."""

    messages: Sequence[Message]
    ctx: TurnContext
    calls: tuple[ReportedCall, ...] = ()
    retries: int = 0
    latency_ms: float = 0.0
    first_token_ms: float | None = None


class HttpConversation:
    """One conversation with the agent, and its state."""

    def __init__(self, plan: HttpAgentPlan) -> None:
        self.name = plan.config.name
        self._plan = plan
        self._jar = CookieJar()
        self._sender = plan.open_sender(self._jar)
        self._setup_sender = plan.open_sender(self._jar, for_setup=True)
        self._reader = AnswerReader(plan.paths)
        self._logged_in: LoginResult | None = None
        self._is_set_up = False
        self._saved: dict[str, Any] = {}
        self._last_turn: _TurnResults | None = None
        self._reported_calls: tuple[ReportedCall, ...] = ()

    async def reply(self, messages: Sequence[Message], ctx: TurnContext) -> AgentReply:
        """Return the reply to the user's last message. Raises NoReply, CannotSend, HeldUp.

        The first turn sends the `setup` requests. `latency_ms` covers the turn's own request and the polls
        for its job, not the setup.
        """
        turn = self._last_turn = _TurnResults(messages, ctx)
        await self._set_up(turn)
        try:
            gathering = await self._run_turn(turn)
            text = gathering.text()
        except NoReply as error:
            raise NoReply(str(error), turn.retries + error.retries, self._observed(turn)) from None
        except AgentError as error:
            raise NoReply(str(error), turn.retries, self._observed(turn)) from None
        if gathering.guessed:
            note_guessed_path(self._plan.notes, gathering.guessed)
        if not self._plan.paths.tool_calls:
            note_unmapped_calls(self._plan.notes, gathering.answer)
        if not self._plan.paths.error:
            note_failure(self._plan.notes, gathering.answer)
        self._note_missing_session(ctx.turn_index)
        observed = self._observed(turn)
        self._reported_calls = (
            *self._reported_calls,
            *without_repeated_calls(turn.calls, self._reported_calls),
        )
        return AgentReply(
            text,
            usage=gathering.usage,
            latency_ms=turn.latency_ms,
            retries=turn.retries,
            observed=observed,
            first_token_ms=turn.first_token_ms,
        )

    async def _run_turn(self, turn: _TurnResults) -> ResponseExtraction:
        """Return the response to the request, or the result of the job that it started."""
        job = self._plan.job
        gathering = await self._send(self._plan.turn, turn)
        self._save(gathering, None if job is None else job.needs)
        if job is None:
            return gathering
        gathering = await self._job_result(job, turn)
        self._save(gathering, None)
        return gathering

    async def _job_result(self, job: PolledJob, turn: _TurnResults) -> ResponseExtraction:
        timeout_s, began_ms = self._plan.resources.timeout_s, turn.latency_ms
        result, took_ms = await job.polling.result(
            lambda: self._send(job.request, turn), timeout_s - began_ms / 1000, timeout_s
        )
        turn.latency_ms = began_ms + took_ms
        return result

    async def _send(self, request: RequestTemplate, turn: _TurnResults) -> ResponseExtraction:
        """Send a request. After a 401, log in again and repeat it once."""
        gathering = ResponseExtraction(self._plan.paths)
        try:
            answered = await self._send_with_login(request, turn, gathering)
        finally:
            turn.calls = gathering.calls.united_with(turn.calls)
        turn.latency_ms += answered.latency_ms
        turn.retries += answered.retries
        turn.first_token_ms = turn.first_token_ms or answered.first_token_ms
        return gathering

    async def _send_with_login(
        self, request: RequestTemplate, turn: _TurnResults, gathering: ResponseExtraction
    ) -> HttpAnswer[None]:
        async def read(response: DirectResponse) -> None:
            await self._reader.read(response, gathering)
            if self._plan.job is None:
                gathering.text()  # a response without a reply fails here, so that the error includes advice

        try:
            return await send_with_status_errors(self._sender, self._request(request, turn), read)
        except Unauthorized as error:
            if not await self._log_in_again():
                raise
            turn.retries += error.retries
            return await send_with_status_errors(self._sender, self._request(request, turn), read)

    def _observed(self, turn: _TurnResults) -> tuple[ToolCall, ...]:
        return as_tool_calls(without_repeated_calls(turn.calls, self._reported_calls), turn.ctx.turn_index)

    # Saved values and placeholders.

    def _request(self, request: RequestTemplate, turn: _TurnResults) -> Any:
        values, absent = self._values(turn)
        return request.filled(values, absent)

    def _values(self, turn: _TurnResults) -> tuple[Values, frozenset[str]]:
        """Return the placeholder values, and the names that have no value until the agent has responded."""
        absent = self._plan.paths.kept.names - self._saved.keys()
        shared = self._logged_in.saved if self._logged_in else {}
        values = TurnValues(turn.messages, turn.ctx, {**shared, **self._saved})
        return _PartialValues(values, absent), absent

    def _save(self, gathering: ResponseExtraction, needed: Collection[str] | None) -> None:
        """Save the session id and the values in `save`. Raises NoReply if a needed value is missing.

        Args:
            needed: the required names; None means all.
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

    def _note_missing_session(self, turn_index: int) -> None:
        if turn_index > 0 and not self._plan.config.names_the_conversation and not list(self._jar):
            calls = " (This is about the user's messages; its tool calls are told apart by other means.)"
            self._plan.notes.add(
                "ties",
                "the user's messages are sent to it without an id of the session, and without those that "
                "came before, so in a second turn it cannot know what was said in the first: put "
                "{{session_id}} or {{messages}} into `body`, if it takes either."
                f"{calls if self._plan.config.beside else ''}",
            )

    # Setup and teardown.

    async def _set_up(self, turn: _TurnResults) -> None:
        """Send the `setup` requests in the first turn. Raises NoReply, CannotSend, HeldUp."""
        if self._logged_in is None:
            await self._log_in(0)
        if self._is_set_up:
            return
        for step in self._plan.steps.setup:
            kept = await self._set_up_step(step, turn)
            self._plan.resources.on_secret(secrets_of(kept))
            self._saved |= kept
        self._is_set_up = True

    async def _set_up_step(self, step: SetUpStep, turn: _TurnResults) -> dict[str, Any]:
        try:
            return await self._send_step(step, turn)
        except Unauthorized:
            if not await self._log_in_again():
                raise
            return await self._send_step(step, turn)

    async def _send_step(self, step: SetUpStep, turn: _TurnResults) -> dict[str, Any]:
        values, absent = self._values(turn)
        return await step.take(self._setup_sender, self._jar, values, absent)

    async def _log_in(self, worn_out: int) -> None:
        self._logged_in = await self._plan.steps.login.newer_than(worn_out)
        self._jar.add(self._logged_in.cookies)

    async def _log_in_again(self) -> bool:
        """Log in again. Returns False if there is no login."""
        if not self._plan.steps.login.can_be_repeated or self._logged_in is None:
            return False
        await self._log_in(self._logged_in.number)
        return True

    async def close(self) -> None:
        """Send the `teardown` requests if setup succeeded. Raises only cancellation."""
        turn = self._last_turn
        if turn is not None and self._is_set_up:
            await self._plan.tear_down(self._plan.steps.teardown, lambda step: self._send_step(step, turn))


class _PartialValues:
    """Values, some still unknown. Templates may omit only keys that hold nothing but such a value."""

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


Ask = Callable[[], Awaitable[ResponseExtraction]]
"""Sends the request once and reads the response."""
_MAX_TEARDOWN_S = 10.0
"""Total time for the requests of one `teardown`, in seconds."""
_TEARDOWN = "teardown"
_PLACE = "is `endpoint` right?"


class Polling:
    """Polls for the result of a job."""

    def __init__(self, poll: Poll) -> None:
        self._until = JsonPath(poll.until)
        self._every_s = poll.every_ms / 1000

    async def result(self, ask: Ask, left_s: float, timeout_s: float) -> tuple[ResponseExtraction, float]:
        """Poll until `until` is true. Returns that response and the milliseconds taken. Raises NoReply."""
        limit = TimeLimit(left_s)
        last: ResponseExtraction | None = None
        try:
            with limit:
                while True:
                    last = await ask()
                    if self._until.holds(last.answer):
                        return last, limit.elapsed * 1000
                    await anyio.sleep(self._every_s)
        except TimeoutError:
            raise NoReply(self._timeout_message(last, timeout_s)) from None

    def _timeout_message(self, last: ResponseExtraction | None, timeout_s: float) -> str:
        answer = f"the last answer: {last.shown}" if last else "no answer came"
        return (
            f"the job was not done within {timeout_s:g} s (request_timeout_ms): "
            f"`poll.until: {self._until.text}` never held; {answer}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PolledJob:
    """How to poll for the result of a turn."""

    request: RequestTemplate
    polling: Polling
    needs: frozenset[str]
    """Names that the response that starts the job must provide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetUpSteps:
    """The requests before and after the turns."""

    setup: tuple[SetUpStep, ...]
    teardown: tuple[SetUpStep, ...]
    run_teardown: tuple[SetUpStep, ...]
    login: Login


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpAgentPlan:
    """Everything that the conversations with one agent share."""

    config: HttpTemplateAgent
    resources: Resources
    paths: AnswerPaths
    turn: RequestTemplate
    job: PolledJob | None
    steps: SetUpSteps
    advisor: ErrorAdvisor
    notes: AgentNotes

    def open_sender(self, jar: CookieJar, *, for_setup: bool = False) -> HttpSender:
        """Return a sender that uses a cookie jar."""
        advisor = None if for_setup else self.advisor
        return _open_sender(self.config, self.resources, jar, advisor)

    def note_how_many(self) -> None:
        """Add a note with the number of further `teardown` errors."""
        more = self.notes.times(_TEARDOWN) - 1
        if more > 0:
            self.notes.add("times", f"`teardown` went wrong {more} times more")

    async def tear_down(
        self, steps: Sequence[SetUpStep], take: Callable[[SetUpStep], Awaitable[object]]
    ) -> None:
        """Send teardown requests, within a time limit and despite cancellation. Errors become notes."""
        if not steps:
            return
        longest = min(_MAX_TEARDOWN_S, self.resources.timeout_s)
        with anyio.move_on_after(longest, shield=True) as scope:
            for step in steps:
                try:
                    await take(step)
                except AgentestError as error:
                    self.notes.add(_TEARDOWN, str(error))
        if scope.cancelled_caught:
            self.notes.add(_TEARDOWN, f"`teardown` was given up after {longest:g} s")


def compile_plan(config: HttpTemplateAgent, resources: Resources) -> HttpAgentPlan:
    """Compile a configuration."""
    paths = paths_of(config)
    return HttpAgentPlan(
        config=config,
        resources=resources,
        paths=paths,
        turn=turn_request(config),
        job=_job(config),
        steps=_steps(config, resources),
        advisor=ErrorAdvisor(config, resources.client),
        notes=AgentNotes(config.name, resources.on_note),
    )


def _job(config: HttpTemplateAgent) -> PolledJob | None:
    if config.poll is None:
        return None
    return PolledJob(
        request=auxiliary_request(config, config.poll),
        polling=Polling(config.poll),
        needs=names_in([template for _, template in config.poll.templates]),
    )


def _steps(config: HttpTemplateAgent, resources: Resources) -> SetUpSteps:
    def steps(key: str, per: str) -> tuple[SetUpStep, ...]:
        return tuple(
            SetUpStep(f"{key}[{index}]", step, auxiliary_request(config, step))
            for index, step in enumerate(getattr(config, key))
            if step.per == per
        )

    def open_sender(jar: CookieJar) -> HttpSender:
        return _open_sender(config, resources, jar, None)

    return SetUpSteps(
        setup=steps("setup", "conversation"),
        teardown=steps("teardown", "conversation"),
        run_teardown=steps("teardown", "run"),
        login=Login(steps("setup", "run"), open_sender, resources.on_secret),
    )


def _open_sender(
    config: HttpTemplateAgent, resources: Resources, jar: CookieJar, advisor: ErrorAdvisor | None
) -> HttpSender:
    browser = CookieSender(resources.client, jar, resources.on_secret, follows_all=advisor is None)
    bare = config.model_copy(update={"headers": {}})  # each request brings all of its headers
    return HttpSender(bare, browser, resources.timeout_s, _PLACE, advisor=advisor)
