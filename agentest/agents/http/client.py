"""Client for HTTP agents with a custom API, described by request templates and response paths.

client      opens conversations; each runs setup, turns and teardown, and stores its state
requests    builds requests from templates
exchange    sends a request with the conversation's cookies, and explains error statuses
reader      reads JSON, server-sent events, JSON lines or text
extraction  applies the configured paths to a response: text, calls, errors, usage, saved values

The agent runs its tools itself: calls in its responses are observed, and mocks do not apply.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import anyio

from agentest.agents.http.exchange import (
    Cookie,
    CookieJar,
    CookieSender,
    Unauthorized,
    send_with_status_errors,
)
from agentest.agents.http.extraction import (
    SESSION,
    AnswerPaths,
    ResponseExtraction,
    ResponsePiece,
    SavedValueSources,
)
from agentest.agents.http.reader import AnswerReader
from agentest.agents.http.requests import RequestTemplate, auxiliary_request, turn_request
from agentest.agents.http_sender import ErrorAdvisor, HttpAnswer, HttpSender
from agentest.agents.placeholders import (
    PartialValues,
    TurnValues,
    ValuesOrNone,
    conversation_texts,
    holds_for,
)
from agentest.agents.port import (
    AccessDenied,
    AgentNotes,
    AgentReply,
    ConversationalAgent,
    NoReply,
    Resources,
    TurnContext,
)
from agentest.agents.reply_detection import empty_path_message, note_failure, note_guessed_path
from agentest.agents.reported_calls import (
    ReportedCall,
    as_tool_calls,
    note_unmapped_calls,
    without_repeated_calls,
)
from agentest.config.agents.http import HttpTemplateAgent, ReplyWebhook
from agentest.config.agents.http_requests import SetUpRequest, TurnRequest
from agentest.domain.messages import Message
from agentest.domain.transcript import ToolCall
from agentest.support.calling import SharedAttempt
from agentest.support.deadlines import TimeLimit
from agentest.support.errors import AgentError, AgentestError, CannotSend
from agentest.support.http.client import DirectResponse
from agentest.support.jmespath_expressions import PathTemplate
from agentest.support.json_text import json_or
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.templates import Template, Values
from agentest.support.text import turn_name

if TYPE_CHECKING:
    from agentest.agents.http.webhook import ReplyInbox, Webhook

_MAX_TEARDOWN_S = 10.0  # total time for the requests of one `teardown`, in seconds
_TEARDOWN = "teardown"
NO_TIES = "it receives each message without a session id and without the earlier messages"


def open_agent(_: str, config: HttpTemplateAgent, resources: Resources) -> HttpClient | Awaitable[HttpClient]:
    """Return the client of an HTTP agent with a custom API. Raises ConfigError."""
    client = HttpClient(config, resources)
    resources.closing.push_async_callback(client.close)
    return _with_webhook(client, config.reply_webhook) if config.reply_webhook else client


async def _with_webhook(client: HttpClient, settings: ReplyWebhook) -> HttpClient:
    from agentest.agents.http.webhook import open_webhook

    client.webhook = await open_webhook(client.config, settings, client.resources)
    return client


class HttpClient(ConversationalAgent):
    """Opens conversations with one agent, which share the compiled configuration and the login."""

    def __init__(self, config: HttpTemplateAgent, resources: Resources) -> None:
        super().__init__(config.name, lambda: HttpConversation(self), takes_attachments=False)
        self.config = config
        self.resources = resources
        self.paths = AnswerPaths(config)
        self.reader = AnswerReader(self.paths)
        self.notes = AgentNotes(config.name, resources.on_note)
        self.webhook: Webhook | None = None  # receives the replies if the agent sends them by itself
        self.own = TurnStep("", None, turn_request(config), self.paths.kept)
        self.then = self._turn_steps("then")
        self.first = self._turn_steps("first") if config.first else self.then
        self.late_names = frozenset(name for step in (*self.first, *self.then) for name in step.kept.names)
        """Names without a value until the agent has answered."""
        self.setup = self._steps("setup", "conversation")
        self.teardown = self._steps(_TEARDOWN, "conversation")
        self.login = Login(self, self._steps("setup", "run"))
        self._advisor = ErrorAdvisor(config, resources.client)

    def _turn_steps(self, key: str) -> list[TurnStep]:
        config, kept = self.config, self.paths.kept
        steps = [(f"{key}[{index}]", step) for index, step in enumerate(getattr(config, key))]
        own = [] if steps else [self.own]
        steps += [("poll", config.poll)] if config.poll else []
        return own + [
            TurnStep(place, step, auxiliary_request(config, step), kept.and_also(step.save))
            for place, step in steps
        ]

    def open_inbox(self) -> ReplyInbox | None:
        """Return the inbox of a new conversation. None if replies are in the responses."""
        if self.webhook is None:
            return None
        from agentest.agents.http.webhook import ReplyInbox

        return ReplyInbox(self.webhook)

    def _steps(self, key: str, per: str) -> list[SetUpStep]:
        return [
            SetUpStep(f"{key}[{index}]", step, auxiliary_request(self.config, step))
            for index, step in enumerate(getattr(self.config, key))
            if step.per == per
        ]

    def open_sender(self, jar: CookieJar, *, for_setup: bool = False) -> HttpSender:
        """Return a sender that uses a cookie jar."""
        resources = self.resources
        browser = CookieSender(resources.client, jar, resources.on_secret, follows_all=for_setup)
        bare = self.config.model_copy(update={"headers": {}})  # each request brings all of its headers
        advisor = None if for_setup else self._advisor
        return HttpSender(bare, browser, resources.timeout_s, "is `endpoint` right?", advisor=advisor)

    async def close(self) -> None:
        """Send the `teardown` requests with `per: run`, if there was any conversation."""
        if login := self.login.last:
            jar, saved = CookieJar(login.cookies), dict(login.saved)
            sender = self.open_sender(jar, for_setup=True)
            await self.tear_down(self._steps(_TEARDOWN, "run"), lambda step: step.take(sender, jar, saved))
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

    def __init__(self, client: HttpClient) -> None:
        self.name = client.name
        self._client = client
        self._jar = CookieJar()
        self._sender = client.open_sender(self._jar)
        self._setup_sender = client.open_sender(self._jar, for_setup=True)
        self._logged_in: LoginResult | None = None
        self._is_set_up = False
        self._has_replied = False
        self._saved: dict[str, Any] = {}
        self._inbox = client.open_inbox()
        self._last_turn: _TurnResults | None = None
        self._reported_calls: tuple[ReportedCall, ...] = ()

    async def reply(self, messages: Sequence[Message], ctx: TurnContext) -> AgentReply:
        """Return the reply to the user's last message. Raises NoReply, CannotSend, ProgramDelayed.

        The first turn sends the `setup` requests. `latency_ms` covers the turn's own request and the polls
        for its job, not the setup.
        """
        turn = self._last_turn = _TurnResults(messages, ctx)
        if self._inbox:
            # A telephone number for the session: fifteen digits.
            digest = sha256(ctx.session_id.encode()).hexdigest()
            self._saved["phone"] = f"15550{int(digest[:15], 16) % 10**10:010}"
            self._inbox.begin_turn()
        await self._set_up(turn)
        if self._inbox:
            self._inbox.identify(*self._values(turn))
        try:
            gathering = await self._run_turn(turn)
            text = gathering.text()
        except NoReply as error:
            raise NoReply(str(error), turn.retries + error.retries, self._observed(turn)) from None
        except AgentError as error:
            raise NoReply(str(error), turn.retries, self._observed(turn)) from None
        self._note_doubts(gathering, ctx.turn_index)
        observed = self._observed(turn)
        self._reported_calls += without_repeated_calls(turn.calls, self._reported_calls)
        return AgentReply(
            text,
            usage=gathering.usage,
            latency_ms=turn.latency_ms,
            retries=turn.retries,
            observed=observed,
            first_token_ms=turn.first_token_ms,
        )

    async def _run_turn(self, turn: _TurnResults) -> ResponseExtraction:
        inbox, gathering, has_message = self._inbox, None, False
        steps = self._client.then if self._has_replied else self._client.first
        for index, step in enumerate(steps):
            if step.condition and not holds_for(step.condition, self._known, self._values(turn)[0]):
                continue
            is_last = index == len(steps) - 1 and not inbox
            if step.polls:
                gathering = await self._job_result(step, step.polls, turn)
            else:
                gathering = await self._send(step, turn, has_reply=is_last)
            # The start of a job has to provide only the values that later requests cannot do without.
            needed = None if is_last else frozenset().union(*(each.required for each in steps[index + 1 :]))
            self._save(step, gathering, needed)
            if inbox:
                inbox.identify(*self._values(turn))
            has_message = has_message or step.sends_message
        if gathering is None or not has_message:
            conditions = ", ".join(
                f"`{step.place}.if: {step.condition.text}`" for step in steps if step.condition
            )
            raise CannotSend(
                f"{turn_name(turn.ctx.turn_index)}: no request with the user's message was sent, because its "
                f"condition is false: {conditions}"
            )
        self._has_replied = True
        return await self._collect(inbox, turn) if inbox else gathering

    async def _collect(self, inbox: ReplyInbox, turn: _TurnResults) -> ResponseExtraction:
        assert self._client.webhook is not None
        gathering = ResponseExtraction(self._client.webhook.paths)
        try:
            first_s, last_s = await inbox.collect(gathering, turn.latency_ms / 1000)
        finally:
            turn.calls = gathering.calls.united_with(turn.calls)
        turn.latency_ms, turn.first_token_ms = last_s * 1000, first_s * 1000
        self._save(self._client.own, gathering, None)
        return gathering

    async def _job_result(self, step: TurnStep, polls: TurnRequest, turn: _TurnResults) -> ResponseExtraction:
        timeout_s, began_ms = self._client.resources.timeout_s, turn.latency_ms
        limit = TimeLimit(timeout_s - began_ms / 1000)
        last: ResponseExtraction | None = None
        changed_s = 0.0
        try:
            with limit:
                while True:
                    before, last = last, await self._send(step, turn)
                    if not (polls.quiet_ms and before and before.answer == last.answer):
                        changed_s = limit.elapsed
                    if last.has_result and (limit.elapsed - changed_s) * 1000 >= polls.quiet_ms:
                        turn.latency_ms = began_ms + changed_s * 1000
                        return last
                    await anyio.sleep(polls.every_ms / 1000)
        except TimeoutError:
            answer = f"the last answer: {last.shown}" if last else "no answer came"
            raise NoReply(
                f"the job was not done within {timeout_s:g} s (request_timeout_ms): "
                f"{step.never_ended}; {answer}"
            ) from None

    async def _send(
        self, step: TurnStep, turn: _TurnResults, *, has_reply: bool = False
    ) -> ResponseExtraction:
        until = step.until.filled(ValuesOrNone(self._values(turn)[0])) if step.until else None
        gathering = ResponseExtraction(self._client.paths, step.kept, until=until)
        gathering.is_partial = not has_reply
        try:
            answered = await self._send_with_login(step.request, turn, gathering)
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
            await self._client.reader.read(response, gathering)
            if not gathering.is_partial:
                gathering.text()

        async def send() -> HttpAnswer[None]:
            return await send_with_status_errors(self._sender, request.filled(*self._values(turn)), read)

        try:
            return await send()
        except Unauthorized as error:
            if not await self._log_in_again():
                raise (AccessDenied(str(error)) if self._sender.is_unproven else error) from None
            turn.retries += error.retries
            return await send()

    def _observed(self, turn: _TurnResults) -> tuple[ToolCall, ...]:
        return as_tool_calls(without_repeated_calls(turn.calls, self._reported_calls), turn.ctx.turn_index)

    def _values(self, turn: _TurnResults) -> tuple[Values, frozenset[str]]:
        absent = self._client.late_names - self._saved.keys()
        known = self._known
        if config := self._client.config.messages:
            forms = {"user": Template(config.user), "assistant": Template(config.assistant)}
            known = {"messages": conversation_texts(turn.messages, forms), **known}
        return PartialValues(TurnValues(turn.messages, turn.ctx, known), absent), absent

    @property
    def _known(self) -> Mapping[str, Any]:
        return {**(self._logged_in.saved if self._logged_in else {}), **self._saved}

    def _save(self, step: TurnStep, gathering: ResponseExtraction, needed: Collection[str] | None) -> None:
        sources, config = step.kept, self._client.config
        kept = {**gathering.kept, **sources.in_jar(self._jar)}
        before = self._saved.get(SESSION)
        if config.session and before is not None and kept.get(SESSION, before) != before:
            self._client.notes.add(
                "session",
                "its answers change the id of the session (`session`), and the newest is sent; unless it "
                "gives each answer an id of its own, it has lost the session",
            )
        self._saved |= kept
        for name in step.own_names - kept.keys():
            self._saved.pop(name, None)  # a value of the turn before would be a wrong one
        # A name may stay without a value if a condition looks at it.
        optional = {name for step in config.turn_requests for name in step.condition_names}
        for name in sorted(sources.names - optional):
            is_own = name in step.own_names
            if name not in self._saved and (is_own or needed is None or name in needed):
                key = "session" if name == SESSION and config.session else f"save.{name}"
                place = f"{step.place}." if is_own else ""
                raise NoReply(sources.missing(name, f"{place}{key}", gathering.nothing_for))

    def _note_doubts(self, gathering: ResponseExtraction, turn_index: int) -> None:
        client = self._client
        if gathering.guessed:
            note_guessed_path(client.notes, gathering.guessed)
        if not client.paths.tool_calls:
            note_unmapped_calls(client.notes, gathering.answer)
        if not client.paths.error:
            note_failure(client.notes, gathering.answer)
        if turn_index > 0 and not client.config.names_the_conversation and not list(self._jar):
            calls = " (This is about messages; its tool calls are assigned by other means.)"
            client.notes.add(
                "ties",
                f"{NO_TIES}, so it cannot know the first turn in the second: put "
                "{{session_id}} or {{messages}} into `body`, if it takes either."
                f"{calls if client.config.beside else ''}",
            )

    async def _set_up(self, turn: _TurnResults) -> None:
        if self._logged_in is None:
            await self._log_in(0)
        if self._is_set_up:
            return
        for step in self._client.setup:
            try:
                kept = await self._send_step(step, turn)
            except Unauthorized as error:
                if not await self._log_in_again():
                    raise (AccessDenied(str(error)) if self._sender.is_unproven else error) from None
                kept = await self._send_step(step, turn)
            self._client.resources.on_secret(secrets_of(kept))
            self._saved |= kept
        self._is_set_up = True

    async def _send_step(self, step: SetUpStep, turn: _TurnResults) -> dict[str, Any]:
        return await step.take(self._setup_sender, self._jar, *self._values(turn))

    async def _log_in(self, worn_out: int) -> None:
        self._logged_in = await self._client.login.newer_than(worn_out)
        self._jar.add(self._logged_in.cookies)

    async def _log_in_again(self) -> bool:
        if not self._client.login.steps or self._logged_in is None:
            return False
        await self._log_in(self._logged_in.number)
        return True

    async def close(self) -> None:
        """Send the `teardown` requests if setup succeeded. Raises only cancellation."""
        if self._inbox:
            self._inbox.close()
        turn = self._last_turn
        if turn is not None and self._is_set_up:
            await self._client.tear_down(self._client.teardown, lambda step: self._send_step(step, turn))


class TurnStep:
    """A request of a turn, and the values that it saves."""

    def __init__(
        self, place: str, settings: TurnRequest | None, request: RequestTemplate, kept: SavedValueSources
    ) -> None:
        """Create a step. Without `settings`, it is the agent's own request."""
        self.place = place
        self.request = request
        self.kept = kept
        self.polls = settings if settings and settings.repeats else None
        self.condition = PathTemplate(settings.condition) if settings and settings.condition else None
        self.sends_message = settings is None or settings.sends_message
        self.own_names = frozenset(settings.save) if settings else frozenset[str]()
        self.required = settings.required_names if settings else frozenset[str]()
        self.until = PathTemplate(settings.until) if settings and settings.until else None

    @property
    def never_ended(self) -> str:
        """Return what is missing for the job to end, for errors."""
        if self.until is None:
            return f"`{self.place}` was answered with status 202 or nothing"
        quiet = (
            f", or its answers kept changing (`quiet_ms: {self.polls.quiet_ms}`)"
            if self.polls and self.polls.quiet_ms
            else ""
        )
        return f"`{self.place}.until: {self.until.text}` never held{quiet}"


class SetUpStep:
    """A request of `setup` or `teardown`, and the values that it saves."""

    def __init__(self, place: str, step: SetUpRequest, request: RequestTemplate) -> None:
        """Create a step. `place` is its position in the configuration, such as `setup[0]`."""
        self._place = place
        self._request = request
        self._kept = SavedValueSources(step.save)

    async def take(
        self, sender: HttpSender, jar: CookieJar, values: Values, absent: Collection[str] = ()
    ) -> dict[str, Any]:
        """Send the request and return the saved values. Raises NoReply (Unauthorized), CannotSend."""
        request = self._request.filled(values, absent)
        try:
            answered = await send_with_status_errors(sender, request, self._read)
        except NoReply as error:
            raise type(error)(f"{self._place}: {error}", error.retries) from None
        kept, answer = answered.value
        kept = {**kept, **self._kept.in_jar(jar)}
        for name in self._kept.names - kept.keys():
            problem = self._kept.missing(
                name, f"save.{name}", lambda key, path: empty_path_message(key, path, _without_texts(answer))
            )
            raise NoReply(f"{self._place}: {request.method} {request.url}: {problem}", answered.retries)
        return kept

    async def _read(self, response: DirectResponse) -> tuple[dict[str, Any], Any]:
        text = b"".join([piece async for piece in response.pieces()]).decode("utf-8", errors="replace")
        answer = json_or(text, text)
        kept = self._kept
        found = {**kept.in_piece(ResponsePiece(answer, answer)), **kept.in_text(text)}
        return {**found, **kept.in_headers(response.headers)}, answer


def _without_texts(answer: Any) -> Any:
    if isinstance(answer, Mapping):
        return {key: _without_texts(value) for key, value in answer.items()}
    if isinstance(answer, list):
        return [_without_texts(item) for item in answer]
    return "…" if isinstance(answer, str) else answer


def secrets_of(kept: Any) -> list[str]:
    """Return the texts in saved values, because they may be tokens."""
    if isinstance(kept, str):
        return [kept]
    inner = kept.values() if isinstance(kept, Mapping) else kept if isinstance(kept, list) else ()
    return [text for value in inner for text in secrets_of(value)]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginResult:
    """The result of one login. Logins are numbered from 1."""

    number: int
    saved: Mapping[str, Any]
    cookies: tuple[Cookie, ...]


class Login:
    """Sends the `setup` requests with `per: run`: on first use, and again after the login expires."""

    def __init__(self, client: HttpClient, steps: Sequence[SetUpStep]) -> None:
        self.steps = steps
        self.last: LoginResult | None = None
        self._client = client
        self._attempts = SharedAttempt()

    async def newer_than(self, number: int) -> LoginResult:
        """Return a login newer than this number. Conversations that call this concurrently share one login.

        Raises NoReply, CannotSend or ProgramDelayed, in every conversation that waits for a login that fails.
        """
        await self._attempts.until(lambda: self.last is not None and self.last.number > number, self._log_in)
        assert self.last is not None
        return self.last

    async def _log_in(self) -> None:
        jar, saved = CookieJar(), dict[str, Any]()
        sender = self._client.open_sender(jar, for_setup=True)
        for step in self.steps:
            saved |= await step.take(sender, jar, saved)
            self._client.resources.on_secret(secrets_of(saved))
        number = self.last.number + 1 if self.last else 1
        self.last = LoginResult(number=number, saved=saved, cookies=tuple(jar))
