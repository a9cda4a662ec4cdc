"""The judge of a calibration: the configured one, or another that is named, opened as a run opens it."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import replace

import anyio

from agentest.calibration.asking import SCOPE, answers_to
from agentest.calibration.comparison import Answer
from agentest.calibration.labels import LabelledConversation, Labels, Question
from agentest.config.agents.chat_completions import ChatCompletionsAgent
from agentest.config.config import Config
from agentest.config.file import LoadedConfig
from agentest.config.models import ModelSettings, UserSettings
from agentest.domain.metrics import BUILTIN
from agentest.domain.results import ModelUsage
from agentest.judging.judge import Judge
from agentest.runner.connections import check_recordings, open_models, open_recordings
from agentest.runner.plan import Plan, Unit
from agentest.runner.prepare import Prepared, Request, configure, is_configured, prepared_for
from agentest.runner.session import Session
from agentest.runner.settings import settings_of
from agentest.runner.signals import handled_signals
from agentest.runner.stop import Stop
from agentest.scenarios.model import Scenario
from agentest.support.errors import ConfigError
from agentest.support.terminal import tell

_NOBODY = "http://127.0.0.1"
"""Stands where a configuration needs an agent: none is talked to."""


def prepared_judge(request: Request, model: str | None) -> Prepared:
    """The judge, ready to be asked. Raises ConfigError where there is none.

    Args:
        model: the one to ask in place of the configured one.
    """
    loaded = _loaded(request, model)
    config = loaded.config
    # A second opinion would hide what the judge itself answers.
    judge = config.judge.model_copy(update={"confirm": None})
    if model:
        judge = judge.model_copy(update={"model": model, "provider": None})
    # Nobody plays a user here: with the judge's settings, no other model is looked for.
    user = UserSettings.model_validate({name: getattr(judge, name) for name in ModelSettings.model_fields})
    config = config.model_copy(update={"judge": judge, "user": user})
    # The calls are counted and recorded under one name.
    unit = _unit()
    plan = Plan(entries=(unit,), agents={}, comparison=False, units=(unit,))
    prepared = prepared_for(request, replace(loaded, config=config), plan)
    if prepared.judge is None:
        raise ConfigError(
            f"no judge is configured: set `model`, or `judge: {{model: …}}`, in {loaded.path.name}, or name "
            "one with --judge MODEL"
        )
    return prepared


def _loaded(request: Request, model: str | None) -> LoadedConfig:
    """The configuration; where a judge is named, there need not be one. Raises ConfigError."""
    if is_configured(request):
        return configure(request)
    if not model:
        raise ConfigError(
            f"no configuration found in {request.root}, so there is no judge; name one with --judge "
            "MODEL, or the configuration with --config PATH"
        )
    return LoadedConfig(Config(agent=ChatCompletionsAgent(endpoint=_NOBODY)), request.root)


def _unit() -> Unit:
    return Unit(
        scenario=Scenario(SCOPE, "", 0),
        agent="",
        file="",
        scope=SCOPE,
        slug=SCOPE,
        conversations=0,
        max_turns=0,
        metrics=(),
        thresholds={},
    )


def run_metrics(prepared: Prepared) -> tuple[str, ...]:
    """The built-in metrics that runs ask about."""
    named = prepared.loaded.config.metrics
    return tuple(name for name in BUILTIN if named is None or name in named)


def _hidden(conversation: LabelledConversation, prepared: Prepared) -> LabelledConversation:
    """The conversation as judges of runs are told of its agent: without secrets, whoever wrote the file."""
    redact, background = prepared.loaded.redact, conversation.background
    told = replace(background, instructions=redact(background.instructions), tools=redact(background.tools))
    return replace(conversation, background=told)


async def ask_judge(
    prepared: Prepared, labels: Labels, questions: list[Question]
) -> tuple[dict[Question, Answer], ModelUsage]:
    """The judge's answers, and what they took. Raises UsageError, and KeyboardInterrupt at a first signal.

    What was recorded until then is kept; a second signal ends the process at once.
    """

    def note(text: str) -> None:
        tell(f"agentest: {prepared.loaded.redact(text)}")

    settings = settings_of(prepared.loaded.config, prepared.request.options)
    session = Session(
        prepared=prepared,
        settings=settings,
        emit=lambda event: note(getattr(event, "text", "")),
        stop=Stop(),
        on_note=note,
    )
    asking = anyio.CancelScope()
    with handled_signals(asking.cancel, str) as signals, asking:
        answers, usage = await _asked(session, labels, questions)
    if signals:
        raise KeyboardInterrupt
    return answers, usage


async def _asked(
    session: Session, labels: Labels, questions: list[Question]
) -> tuple[dict[Question, Answer], ModelUsage]:
    prepared, settings = session.prepared, session.settings
    async with AsyncExitStack() as stack:
        recordings = open_recordings(session)
        check_recordings(recordings, prepared.plan)
        models, ledger = await open_models(session, recordings, stack)
        assert models.judge
        judge = Judge(models.judge, settings.samples, settings.batch)
        shown = {id: _hidden(each, prepared) for id, each in labels.conversations.items()}
        answers = await answers_to(questions, shown, judge, run_metrics(prepared))
    return answers, ledger.of(SCOPE).get("judge", ModelUsage())
