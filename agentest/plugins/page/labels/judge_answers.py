"""Get the judge's answers to the questions that people have answered, as a run would."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial

import anyio

from agentest.config.agents.chat_completions import ChatCompletionsAgent
from agentest.config.config import Config
from agentest.config.file import LoadedConfig
from agentest.config.models import Batch, ModelSettings, UserSettings
from agentest.domain.metrics import BUILTIN, CRITERIA, GOAL
from agentest.domain.results import GoalOutcome, ModelUsage, Score, Unscored
from agentest.judging import judge_input
from agentest.judging.answers import criterion_result, score_of
from agentest.judging.judge import Judge, JudgedPart, SampledAnswers, split_into_parts
from agentest.models.port import CallKey
from agentest.plugins.page.labels.agreement import JudgeAnswer, JudgeOutcome
from agentest.plugins.page.labels.conversations_to_label import redacted
from agentest.plugins.page.labels.labels import (
    LabelledConversation,
    LabelQuestion,
    LabelSet,
    Value,
    is_answerable,
    questions_of,
)
from agentest.runner.plan import Plan, Unit
from agentest.runner.prepare import Prepared, RunRequest, configure, is_configured, prepared_for
from agentest.runner.session import (
    RunSession,
    Stop,
    open_models,
    open_recordings,
    settings_of,
)
from agentest.scenarios.model import Criterion, Scenario
from agentest.support.calling import run_concurrently
from agentest.support.errors import ConfigError
from agentest.support.interrupts import handled_signals
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.terminal import tell

SCOPE = "calibrate"  # scope under which model calls are counted and recorded


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeRequest:
    """One request: about a turn, a conversation as a whole, or a whole conversation with its turns."""

    conversation: LabelledConversation
    turn: int | None
    questions: Mapping[LabelQuestion, judge_input.JudgeQuestion]
    all_turns: bool = False

    @property
    def calls(self) -> int:
        """Return the number of calls per sample."""
        judge_questions = list(self.questions.values())
        return len(split_into_parts(judge_questions, len(self.conversation.turns))) if self.all_turns else 1


async def answers_to(
    questions: Sequence[LabelQuestion],
    conversations: Mapping[str, LabelledConversation],
    judge: Judge,
    metrics: Iterable[str],
) -> dict[LabelQuestion, JudgeOutcome]:
    """Return the judge's answer to each question. Failures of the model become Unscored.

    Args:
        metrics: the metrics that a run judges. If one call asks several questions, they are asked along with
            the labeled ones, because they can influence each other's answers.
    """
    requests = list(judge_requests(questions, conversations, judge.batch, metrics))
    if not requests:
        return {}
    batches = await run_concurrently([partial(_answers_to_request, each, judge) for each in requests])
    answers = {question: answer for each in batches for question, answer in each.items()}
    return {question: answers[question] for question in questions}


def judge_requests(
    questions: Sequence[LabelQuestion],
    conversations: Mapping[str, LabelledConversation],
    batch: Batch,
    metrics: Iterable[str],
) -> Iterator[JudgeRequest]:
    """Yield the requests, grouped as configured."""
    labelled: dict[str, set[LabelQuestion]] = {}
    for question in questions:
        labelled.setdefault(question.conversation, set()).add(question)
    beside = frozenset({*metrics, CRITERIA})
    for conversation_id, mine in labelled.items():
        conversation = conversations[conversation_id]
        of_a_run = {q for q in questions_of(conversation, beside) if is_answerable(q, conversation)}
        questions_to_ask = [
            q for q in questions_of(conversation, (*BUILTIN, CRITERIA)) if q in mine | of_a_run
        ]
        yield from _grouped(conversation, questions_to_ask, mine, batch)


def _grouped(
    conversation: LabelledConversation,
    requested: Sequence[LabelQuestion],
    labelled: set[LabelQuestion],
    batch: Batch,
) -> Iterator[JudgeRequest]:
    together, mine = batch is Batch.CONVERSATION, [each for each in requested if each in labelled]
    groups: list[Sequence[LabelQuestion]]
    if together:
        groups = [requested]
    elif batch is Batch.OFF:
        groups = [[question] for question in mine]
    else:
        turns = dict.fromkeys(each.turn for each in mine)
        groups = [[each for each in requested if each.turn == turn] for turn in turns]
    for group in groups:
        questions = {question: _judge_question(question, conversation) for question in group}
        turn = None if together else group[0].turn
        yield JudgeRequest(conversation=conversation, turn=turn, questions=questions, all_turns=together)


def _judge_question(question: LabelQuestion, conversation: LabelledConversation) -> judge_input.JudgeQuestion:
    if question.metric != CRITERIA:
        return judge_input.JudgeQuestion(question.metric, question.turn)
    number = conversation.criteria.index(question.criterion) + 1
    return judge_input.criterion_question(number, Criterion(question.criterion))


async def _answers_to_request(request: JudgeRequest, judge: Judge) -> dict[LabelQuestion, JudgeOutcome]:
    conversation, turns = request.conversation, request.conversation.turns
    key = CallKey(
        "judge", SCOPE, int(hashlib.sha256(conversation.id.encode()).hexdigest()[:8], 16), request.turn
    )
    judge_questions = list(request.questions.values())
    if request.all_turns:

        def context(part: JudgedPart, room: int) -> judge_input.Context:
            visible = turns[: part.turn_indexes.stop]
            return judge_input.part_context(conversation.background, visible, part.turn_indexes, room)

        sampled = await judge.ask_of_all_turns(judge_questions, len(turns), context, key)
    elif request.turn is None:
        whole = judge_input.conversation_context(conversation.background, turns, judge.room)
        sampled = await judge.ask(judge_questions, whole, key)
    else:
        turns_context = judge_input.turn_context(
            conversation.background, turns[: request.turn + 1], judge.room
        )
        sampled = await judge.ask(judge_questions, turns_context, key)
    return {
        question: _answer(question, sampled[each], len(turns)) for question, each in request.questions.items()
    }


def _answer(question: LabelQuestion, sampled: SampledAnswers, turns: int) -> JudgeOutcome:
    if not sampled.usable:
        return Unscored(sampled.problem)
    if question.metric == CRITERIA:
        result = criterion_result(Criterion(question.criterion), sampled.usable, sampled.requested, turns)
        return JudgeAnswer(str(result.result), result.reason)
    score = score_of(question.metric, sampled.usable, sampled.requested)
    if isinstance(score, Unscored):
        return JudgeAnswer(str(score.outcome), score.error) if score.outcome else score
    return JudgeAnswer(value_of(question.metric, score), score.reason)


def value_of(metric: str, score: Score) -> Value:
    """Return the value with which a person would agree with a score."""
    if metric == GOAL:
        return str(score.outcome or (GoalOutcome.REACHED if score.value else GoalOutcome.NOT_REACHED))
    if isinstance(score.value, str):
        return score.labels or (score.value,)
    return int(score.value)


_NOBODY = "http://127.0.0.1"
"""Stands in for an agent in a configuration that needs one. It is never contacted."""


def prepare_judge(request: RunRequest, model: str | None) -> Prepared:
    """Prepare the judge. Raises ConfigError if there is none."""
    loaded = _load_config(request, model)
    config = loaded.config
    # A second opinion would hide the judge's own answer.
    judge = config.judge.model_copy(update={"confirm": None})
    if model:
        judge = judge.model_copy(update={"model": model, "provider": None})
    # No user is simulated: with the judge's settings, no other model is needed.
    user = UserSettings.model_validate({name: getattr(judge, name) for name in ModelSettings.model_fields})
    config = config.model_copy(update={"judge": judge, "user": user})
    # Count and record the calls under one name.
    unit = Unit(
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
    plan = Plan(entries=(unit,), agents={}, comparison=False, units=(unit,))
    prepared = prepared_for(request, replace(loaded, config=config), plan)
    if prepared.judge is None:
        raise ConfigError(
            f"no judge is configured: set `model`, or `judge: {{model: …}}`, in {loaded.path.name}, or name "
            "one with --judge MODEL"
        )
    return prepared


def _load_config(request: RunRequest, model: str | None) -> LoadedConfig:
    """Load the configuration, which is optional if a judge is named. Raises ConfigError."""
    if is_configured(request):
        return configure(request)
    if not model:
        raise ConfigError(
            f"no configuration found in {request.root}, so there is no judge; name one with --judge "
            "MODEL, or the configuration with --config PATH"
        )
    return LoadedConfig(Config(agent=ChatCompletionsAgent(endpoint=_NOBODY)), request.root)


def run_metrics(prepared: Prepared) -> tuple[str, ...]:
    """Return the built-in metrics that runs judge."""
    named = prepared.loaded.config.metrics
    return tuple(name for name in BUILTIN if named is None or name in named)


async def judge_labelled_questions(
    prepared: Prepared, labels: LabelSet, questions: list[LabelQuestion]
) -> tuple[dict[LabelQuestion, JudgeOutcome], ModelUsage]:
    """Return the judge's answers and usage. Raises UsageError, and KeyboardInterrupt at a first signal.

    Recordings up to then are preserved. A second signal ends the process at once.
    """

    def note(text: str) -> None:
        tell(f"agentest: {prepared.loaded.redact(text)}")

    session = RunSession(
        prepared=prepared,
        settings=settings_of(prepared),
        emit=lambda event: note(getattr(event, "text", "")),
        stop=Stop(),
        on_note=note,
    )
    asking = anyio.CancelScope()
    with handled_signals(asking.cancel, str) as signals, asking:
        answers, usage = await _answers_to_labels(session, labels, questions)
    if signals:
        raise KeyboardInterrupt
    return answers, usage


async def _answers_to_labels(
    session: RunSession, labels: LabelSet, questions: list[LabelQuestion]
) -> tuple[dict[LabelQuestion, JudgeOutcome], ModelUsage]:
    prepared, settings = session.prepared, session.settings.judge
    async with AsyncExitStack() as stack:
        recordings = open_recordings(session)
        models, ledger = await open_models(session, recordings, stack)
        assert models.judge
        judge = Judge(models.judge, settings.samples, settings.batch, context=settings.context)
        conversations = {
            id: replace(each, background=redacted(each.background, prepared.loaded.redact))
            for id, each in labels.conversations.items()
        }
        answers = await answers_to(questions, conversations, judge, run_metrics(prepared))
    return answers, ledger.of(SCOPE).get("judge", ModelUsage())
