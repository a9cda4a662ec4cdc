"""Settings of HTTP agents with a custom API: request templates and response paths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from agentest.config.agents.base import FAMILIES
from agentest.config.agents.companion_servers import ADDRESSES, CompanionServer, Port, check_placeholders
from agentest.config.agents.http_requests import (
    HttpRequestSettings,
    Method,
    Params,
    Poll,
    SavedValues,
    SetUpRequest,
    TurnRequest,
    ValueSource,
    check_body,
    check_endpoint,
    names_in,
    request_secrets,
)
from agentest.config.agents.over_http import IN_PROCESS, HttpAgent
from agentest.config.fields import PathText, Section, example_url, normal_address
from agentest.domain.tool_visibility import ToolVisibility
from agentest.support.errors import errors_as
from agentest.support.jmespath_expressions import check_path
from agentest.support.redaction import header_secrets

_NOT_IDENTIFYING = frozenset({"message", "turn_index", "scenario", *ADDRESSES})
"""Placeholders that do not identify the conversation. The addresses are for its tools."""
_TURN_KEYS = ("endpoint", "params", "headers", "body")


class MessageForms(Section):
    """The form of a message of each role in `{{messages}}`, with `{{content}}` for its text."""

    user: Any
    assistant: Any

    @field_validator("user", "assistant")
    @classmethod
    def _has_content(cls, value: Any, info: ValidationInfo) -> Any:
        check_placeholders(f"messages.{info.field_name}", value, ["content"])
        return value


class HttpTemplateAgent(HttpAgent):
    """An HTTP agent with a custom API."""

    state_place: ClassVar[str] = "write {{state.KEY}} into the `body` of the agent's configuration"

    type: Literal["http"]
    method: Method = "POST"
    params: Params = Field(default_factory=dict)
    body: Any = None
    messages: MessageForms | None = None
    """The form of each message in `{{messages}}`. None: `{role, content}`."""
    reply: PathText | None = None
    """Path of the reply. None: the only usual place that contains text."""
    delta: PathText | None = None
    """Path of a piece of the reply in a stream's event."""
    done: PathText | None = None
    """Path that is true for a stream's last event. None: the stream ends with the response."""
    tool_calls: PathText | None = None
    error: PathText | None = None
    usage: PathText = "usage"
    session: ValueSource | None = None
    """Place of the server's session id. None: Agentest creates the id."""
    save: SavedValues = Field(default_factory=dict)
    """Placeholder → place of its value in the response, for polls and later turns."""
    poll: Poll | None = None
    first: list[TurnRequest] = Field(default_factory=list)
    """The requests of the first turn. Empty: as for every turn."""
    then: list[TurnRequest] = Field(default_factory=list)
    """The requests of turns, or with `first` of later turns. Empty: that of the agent's own keys."""
    reply_webhook: ReplyWebhook | None = None
    """How the agent sends its replies by itself. None: they are in its responses."""
    setup: list[SetUpRequest] = Field(default_factory=list)
    teardown: list[SetUpRequest] = Field(default_factory=list)

    @property
    def natural_visibility(self) -> ToolVisibility:
        return ToolVisibility.REPORTED if self.tool_calls else ToolVisibility.UNSEEN

    @property
    def ways_to_see(self) -> tuple[str, ...]:
        if self.tool_calls:
            return ()
        return ("set `tool_calls` to the JMESPath of the calls in its answers ({name, args, result})",)

    @property
    def saved_names(self) -> tuple[str, ...]:
        steps: tuple[SetUpRequest | TurnRequest, ...] = (*self.setup, *self.turn_requests)
        return (*(name for step in steps for name in step.save), *self.save)

    @property
    def turn_requests(self) -> tuple[TurnRequest, ...]:
        """The further requests of turns."""
        return (*self.first, *self.then, *([self.poll] if self.poll else []))

    @property
    def secrets(self) -> list[str]:
        of_messages = request_secrets(self.endpoint, self.params, self.sent_headers, self.body)
        of_server = [secret for secret in super().secrets if "{{" not in secret]
        of_requests = [secret for _, request in self._requests() for secret in request.secrets]
        verify = self.reply_webhook.verify if self.reply_webhook else None
        return [*of_messages, *of_server, *of_requests, *(verify.secrets if verify else [])]

    @property
    def unsaved_placeholders(self) -> tuple[str, ...]:
        return (*super().unsaved_placeholders, *(["phone"] if self.reply_webhook else []))

    @property
    def names_the_conversation(self) -> bool:
        """True if requests identify their conversation or contain its history."""
        return bool(self.sent_placeholders - _NOT_IDENTIFYING)

    @property
    def sent_placeholders(self) -> frozenset[str]:
        """The placeholders in the requests of a turn and of the conversation's setup."""
        steps = [*(step for step in self.setup if step.per == "conversation"), *self.first, *self.then]
        return names_in([[getattr(self, key) for key in _TURN_KEYS], [step.templates for step in steps]])

    @field_validator("endpoint")
    @classmethod
    def _http_url(cls, value: str, info: ValidationInfo) -> str:
        in_process = info.data.get("app") is not None
        if not value and not in_process:
            raise PydanticCustomError("missing", "Field required")
        url = f"{IN_PROCESS}{value}" if in_process and value.startswith("/") else value
        if url:
            check_endpoint(example_url(url))
        return normal_address(url)

    @property
    def urls(self) -> dict[str, str]:
        own = {f"{key}.endpoint": request.endpoint for key, request in self._requests() if request.endpoint}
        return {**super().urls, **own}

    def at_port(self, port: int) -> Self:
        at = super().at_port(port)
        return at.model_copy(
            update={
                "setup": [step.at_port(port) for step in self.setup],
                "teardown": [step.at_port(port) for step in self.teardown],
                "first": [step.at_port(port) for step in self.first],
                "then": [step.at_port(port) for step in self.then],
                "poll": self.poll and self.poll.at_port(port),
            }
        )

    def _requests(self) -> Iterator[tuple[str, HttpRequestSettings]]:
        for key in ("setup", "teardown", "first", "then"):
            yield from ((f"{key}[{index}]", step) for index, step in enumerate(getattr(self, key)))
        if self.poll:
            yield "poll", self.poll

    @field_validator("setup", "teardown", "first", "then", mode="before")
    @classmethod
    def _one_or_more(cls, value: Any) -> Any:
        return [value] if isinstance(value, Mapping | HttpRequestSettings) else value

    @model_validator(mode="after")
    def _body_has_its_form(self) -> Self:
        check_body(self.body, self.sent_headers)
        return self

    @model_validator(mode="after")
    def _the_user_is_heard(self) -> Self:
        for key in ("first", "then"):
            steps = getattr(self, key)
            if steps and not any(step.sends_message for step in steps):
                raise ValueError(
                    f"`{key}` never sends the user's message: put {{{{message}}}} or {{{{messages}}}} into "
                    "the `body`, `params` or `endpoint` of one of its requests"
                )
        if self.then:
            unused = next((key for key in ("body", "params") if getattr(self, key)), None)
            if unused:
                raise ValueError(
                    f"`{unused}` is never sent, because `then` has the requests of each turn: move it into "
                    "one of them"
                )
        elif self.messages and "messages" not in self.sent_placeholders:
            raise ValueError("`messages` shapes {{messages}}, which no request sends: put it into `body`")
        elif not names_in([getattr(self, key) for key in _TURN_KEYS]) & {"message", "messages"}:
            raise ValueError(
                "the request does not contain the user's message: put {{message}} (the last one) or "
                "{{messages}} (all of them) into `body`, `params`, `headers` or `endpoint`, like body: "
                '{message: "{{message}}"}'
            )
        return self

    @model_validator(mode="after")
    def _replies_come_one_way(self) -> Self:
        if self.reply_webhook is None:
            return self
        if other := next((key for key in ("reply", "delta", "done", "poll") if getattr(self, key)), None):
            raise ValueError(
                f"`{other}` is for replies in the agent's responses, and `reply_webhook` receives them: set "
                f"its `message`, and leave `{other}` out"
            )
        known = (*self.unsaved_placeholders, *self.saved_names)
        check_placeholders("reply_webhook.id", self.reply_webhook.id, known, FAMILIES)
        if not (names := names_in(self.reply_webhook.id)) - _NOT_IDENTIFYING:
            raise ValueError(
                f"`reply_webhook.id` is {self.reply_webhook.id!r}, the same for every conversation: write "
                "{{session_id}}, {{phone}} or a saved value into it"
            )
        if self.reply_webhook.verify is None and (self.session or "session_id" not in names):
            raise ValueError(
                f"`reply_webhook.id` is {self.reply_webhook.id!r}, which a stranger may guess: write "
                'reply_webhook: {verify: {path: "SOME-SECRET"}}, and tell the agent the address '
                f"http://localhost:{self.reply_webhook.port}/SOME-SECRET"
            )
        return self

    @model_validator(mode="after")
    def _the_session_is_sent(self) -> Self:
        if self.session is None:
            return self
        if "session_id" in self.saved_names:
            raise ValueError("`session` and a saved `session_id` exclude each other; keep one of them")
        polled = names_in(self.poll.templates if self.poll else ())
        if self.reply_webhook:
            polled |= names_in(self.reply_webhook.id)
        if "session_id" not in self.sent_placeholders | polled:
            raise ValueError(
                "`session` reads an id that nothing sends back: put {{session_id}} into `body`, `params` or "
                "`headers` (it is left out until the server has made one)"
            )
        return self

    @model_validator(mode="after")
    def _templates_are_known(self) -> Self:
        for key in ("endpoint", "params"):
            known = (*self.unsaved_placeholders, *self.saved_names)
            check_placeholders(key, getattr(self, key), known, FAMILIES)
        of_run = self._check_steps("setup", "run", ())
        of_both = self._check_steps("setup", "conversation", of_run)
        everything = (*of_both, *self.saved_names)
        self._check_steps("teardown", "run", of_run)
        self._check_steps("teardown", "conversation", everything)
        for location, request in self._requests():
            if isinstance(request, TurnRequest):
                self._check_request(location, request, (*self.unsaved_placeholders, *everything), FAMILIES)
        self._check_order("first" if self.first else "then", of_both)
        return self

    def _check_order(self, key: str, saved: tuple[str, ...]) -> None:
        ready = {*self.unsaved_placeholders, *saved} - ({"session_id"} if self.session else set())
        for index, step in enumerate(getattr(self, key)):
            unsaved = step.required_names & {*self.saved_names, "session_id"} - ready - step.condition_names
            if unsaved:
                raise ValueError(
                    f"`{key}[{index}]` sends {{{{{min(unsaved)}}}}} in the first turn before any answer can "
                    "have saved it: put the request that saves it before this one, or send it in a key of "
                    "its own, which is left out until then"
                )
            ready |= {*step.save, *self.save, "session_id"}

    def _check_steps(self, key: str, per: str, known: tuple[str, ...]) -> tuple[str, ...]:
        shared = per == "run"
        for index, step in enumerate(getattr(self, key)):
            if step.per == per:
                location = f"{key}[{index}]"
                names = known if shared else (*self.unsaved_placeholders, *known)
                self._check_request(location, step, names, () if shared else FAMILIES)
                known = (*known, *step.save)
        return known

    def _check_request(
        self, location: str, request: HttpRequestSettings, names: tuple[str, ...], families: tuple[str, ...]
    ) -> None:
        of_run = isinstance(request, SetUpRequest) and request.per == "run"
        for key, template in request.templates:
            if of_run and (foreign := names_in(template) - set(names)):
                raise ValueError(
                    f"`{location}.{key}` has the placeholder {{{{{min(foreign)}}}}}: a request `per: run` "
                    "belongs to no conversation, and knows only what those before it have saved"
                )
            check_placeholders(f"{location}.{key}", template, names, families)
        if isinstance(request, TurnRequest):
            check_placeholders(f"{location}.until", request.until, names, families)
            request.check_condition(location, names)
            if not request.endpoint:
                return
        if (whole := request.whole_endpoint) and whole in self.saved_names:
            return
        with errors_as(ValueError, f"`{location}.endpoint` "):
            check_endpoint(example_url(request.endpoint), example_url(self.endpoint or self.default_endpoint))


class Verify(Section):
    """How a call shows that it is the agent's: a channel's signature, or a secret in a header or its path."""

    slack: str | None = Field(default=None, min_length=1)
    """The signing secret of the Slack app."""
    twilio: str | None = Field(default=None, min_length=1)
    """The auth token of the Twilio account."""
    whatsapp: str | None = Field(default=None, min_length=1)
    """The secret of the Meta app."""
    header: str | None = Field(default=None, min_length=1)
    """The header that contains `secret`."""
    secret: str | None = Field(default=None, min_length=1)
    """The whole value of the header."""
    path: str | None = Field(default=None, min_length=8)
    """The secret that one part of the path is."""

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        ways = (self.slack, self.twilio, self.whatsapp, self.header, self.path)
        if ways.count(None) != 4 or (self.header is None) != (self.secret is None):
            raise ValueError(
                "takes one of {slack: SECRET}, {twilio: SECRET}, {whatsapp: SECRET}, {path: SECRET} and "
                "{header: NAME, secret: VALUE}"
            )
        if set(self.path or "") & {*"/?# "}:
            raise ValueError("`path` is one part of a path, without `/`, `?`, `#` and spaces")
        return self

    @property
    def secrets(self) -> list[str]:
        headers = {self.header: self.secret} if self.header and self.secret else {}
        named = (self.slack, self.twilio, self.whatsapp, self.secret, self.path)
        return [*header_secrets(headers), *(each for each in named if each and len(each) >= 8)]


class ReplyWebhook(CompanionServer):
    """The server to which the agent sends its replies. It answers every path."""

    port: Port
    """The port, which the agent knows from its own settings."""
    message: PathText
    """Path of the text in the body of a call. A call without one is answered and belongs to no reply."""
    conversation: PathText
    """Path of the value in it that identifies the conversation."""
    id: str = Field(default="{{session_id}}", min_length=1)
    """That value, with placeholders."""
    until: PathText | None = None
    """Path that is true for the last call of a turn."""
    quiet_ms: int = Field(default=1000, ge=20)
    """Without `until`, how long no further call has to come after the first message of a turn."""
    ack: Any = Field(default_factory=lambda: {"ok": True, "id": "{{call_id}}"})
    """The answer to each call, with placeholders: `{{call_id}}`, and `{{call.KEY}}` for its values."""
    verify: Verify | None = None
    """How calls are verified. None: by the session id of their conversation, which nobody can guess."""

    @model_validator(mode="before")
    @classmethod
    def _quiet_time(cls, value: Any) -> Any:
        until = value.get("until") if isinstance(value, Mapping) else None
        if not isinstance(until, Mapping | int):
            return value
        quiet = until if isinstance(until, Mapping) else {"quiet_ms": until}
        return {**{key: item for key, item in value.items() if key != "until"}, **quiet}

    @model_validator(mode="after")
    def _ack_has_known_names(self) -> Self:
        check_placeholders("reply_webhook.ack", self.ack, ("call_id",), ("call",))
        for name in self.ack_paths:
            check_path(name)
        return self

    @property
    def ack_paths(self) -> tuple[str, ...]:
        """The paths into a call whose values `ack` contains."""
        from agentest.support.templates import Template

        return tuple(n.removeprefix("call.") for n in Template(self.ack).names if n.startswith("call."))
