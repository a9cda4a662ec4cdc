"""Compile an agent's configuration once into the requests and paths that all conversations share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import anyio

from agentest.agents.advice import Advisor
from agentest.agents.http.cookies import CookieJar
from agentest.agents.http.exchange import CookieSender
from agentest.agents.http.extraction import AnswerPaths, ResponseExtraction, paths_of
from agentest.agents.http.requests import RequestTemplate, auxiliary_request, turn_request
from agentest.agents.http.session import Login, SetUpStep
from agentest.agents.http_sender import HttpSender, advisor_of
from agentest.agents.port import AgentNotes, NoReply, Resources
from agentest.config.agents.http import HttpTemplateAgent
from agentest.config.agents.http_requests import Poll, names_in
from agentest.support.deadlines import TimeLimit
from agentest.support.errors import AgentestError
from agentest.support.json_path import JsonPath

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
    advisor: Advisor
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
        advisor=advisor_of(config, resources.client),
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
    config: HttpTemplateAgent, resources: Resources, jar: CookieJar, advisor: Advisor | None
) -> HttpSender:
    browser = CookieSender(resources.client, jar, resources.on_secret, follows_all=advisor is None)
    bare = config.model_copy(update={"headers": {}})  # each request brings all of its headers
    return HttpSender(bare, browser, resources.timeout_s, _PLACE, advisor=advisor)
