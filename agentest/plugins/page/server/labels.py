"""Routes for labelling. The judge's answer to a question is sent only after the person has answered it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import asdict, field
from pathlib import Path

from aiohttp import web

from agentest.domain.results import Unscored
from agentest.plugins.page.labels import labelling_session as labelling
from agentest.plugins.page.labels.agreement import (
    Pair,
    consensus_of,
    figures_as_json,
    figures_of,
    labelled_metrics,
)
from agentest.plugins.page.labels.conversations_to_label import (
    GatheredConversations,
    gather_conversations,
    scenarios_of,
)
from agentest.plugins.page.labels.labels import (
    LabelQuestion,
    LabelSet,
    LabelsFile,
    format_label_value,
    known_metric,
    metrics_named,
    parse_value,
    turn_number,
)
from agentest.plugins.page.server.json_routes import (
    UI,
    Answer,
    ItemNotFound,
    Refusal,
    Values,
    WebProject,
    call_with_imports,
    json_route,
    optional_text,
)
from agentest.runner.plan import Options
from agentest.runner.prepare import RunRequest
from agentest.store.runs.folder import LATEST, list_stored_runs, run_file
from agentest.support.errors import UsageError, errors_as
from agentest.support.json_text import Json
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.text import turn_name

_FILE = "labels.jsonl"
_ASKED_AT_ONCE = 1000
_NOTE_CHARS = 2000


def add_labels(app: web.Application) -> None:
    """Add the routes."""
    requests = _LabelRequests()
    for method, path, answer in (
        ("GET", "/api/labels", _list_questions),
        ("GET", "/api/labels/question", _question),
        ("GET", "/api/labels/agreement", _agreement),
        ("POST", "/api/labels", _save),
        ("DELETE", "/api/labels", _undo),
    ):
        app.add_routes([json_route(method, path, requests.answering(answer))])


Answering = Callable[[labelling.LabellingSession, Values], Json]


@dataclass(slots=True)
class _LabelRequests:
    """Gathers conversations once for each list of questions, and serializes access to the labels file."""

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    last: tuple[Path, GatheredConversations] | None = None
    files: dict[Path, LabelsFile] = field(default_factory=dict)

    def answering(self, answer: Answering) -> Answer:

        async def answered(request: web.Request, values: Values) -> Json:
            async with self.turn:
                gathered = await self._gathered(request.app, values, anew=answer is _list_questions)
                return await asyncio.to_thread(self._answer, request.app[UI], answer, values, gathered)

        return answered

    async def _gathered(self, app: web.Application, values: Values, *, anew: bool) -> GatheredConversations:
        path = await asyncio.to_thread(_run, app[UI], _text(values, "run") or LATEST)
        if anew or self.last is None or self.last[0] != path:
            self.last = path, await call_with_imports(app, _gathered, app[UI], path)
        return self.last[1]

    def _answer(
        self, project: WebProject, answer: Answering, values: Values, gathered: GatheredConversations
    ) -> Json:
        file = _labels_file(project.root, _text(values, "file") or _FILE)
        labels = self.files.setdefault(file, LabelsFile(file))
        session = labelling.LabellingSession(gathered=gathered, file=labels, by=_text(values, "by").strip())
        try:
            return answer(session, values)
        except labelling.AnswerConflict as error:
            now = session.opened(_question_of(values))
            mine = format_label_value(now.mine.value) if now.mine else None
            message = f"{error} You said there: {mine}. Save again to replace it."
            raise Refusal(409, {"error": message, "times": now.times}) from error
        except LookupError:
            raise ItemNotFound("the run has no such question any more; load the page anew") from None


def _gathered(project: WebProject, path: Path) -> GatheredConversations:
    request = RunRequest(project.root, project.config, Options(offline=True))
    return gather_conversations(path, scenarios_of(request))


def _text(values: Values, key: str) -> str:
    return optional_text(values, key) or ""


def _run(project: WebProject, name: str) -> Path:
    """Return the file of a stored run. Raises UsageError."""
    if name == LATEST and project.chosen:
        return project.chosen
    if name != LATEST and name not in {run.id for run in list_stored_runs(project.output_dir)}:
        raise UsageError(f"no run {name!r:.80} is kept")
    return run_file(name, project.output_dir, project.root)


def _labels_file(root: Path, name: str) -> Path:
    """Return the path of a labels file inside the project's folder. Raises UsageError."""
    path = root / name
    if "\0" in name or path.suffix != ".jsonl" or not path.resolve().is_relative_to(root.resolve()):
        raise UsageError(f"labels file: expected a .jsonl file in the project's folder, found {name!r:.80}")
    return path


def _list_questions(session: labelling.LabellingSession, values: Values) -> Json:
    labels = session.labels()
    text = _text(values, "text")
    with errors_as(UsageError, "metric: "):
        metrics = metrics_named(name for name in _text(values, "metric").split(",") if name)
    most = _text(values, "most") or "20"
    if not most.isdecimal() or not 1 <= int(most[:9]) <= _ASKED_AT_ONCE:
        raise UsageError(f"how many: expected a number from 1 to {_ASKED_AT_ONCE}, found {most!r:.20}")
    questions = labelling.open_questions(
        session.conversations((text,) if text else ()),
        metrics,
        (),
        judgments=session.gathered.judged,
        labels=labels,
    )
    mine = session.answered(labels)
    chosen = questions[: int(most)]
    same, compared = session.agreement(chosen, labels)
    return {
        "file": session.file.path.name,
        "people": sorted({label.by for label in labels.labels if label.by}),
        "metrics": list(metrics_named(())),
        "notes": session.gathered.notes,
        "total": len(questions),
        "agreement": {"same": same, "of": compared},
        "progress": labelling.progress_text(len(mine)),
        "questions": [
            {
                "key": _key(each),
                "name": (each.criterion or each.metric)
                + ("" if each.turn is None else f", {turn_name(each.turn)}"),
                "answer": format_label_value(mine[each].value) if each in mine else None,
            }
            for each in chosen
        ],
    }


def _agreement(session: labelling.LabellingSession, _: Values) -> Json:
    mine, stored = session.answered(session.labels()), session.gathered.judged
    labels = LabelSet(labels=list(mine.values()))
    answers = {
        each: labelling.judged(each, stored[each.conversation])
        for each in mine
        if each.conversation in stored
    }
    consensus = consensus_of(labels)
    metrics = labelled_metrics(labels, metrics_named(()))
    figures = (figures_of(metric, labels, consensus, answers) for metric in metrics)
    return {"metrics": [{"metric": each.metric, **figures_as_json(each)} for each in figures if each.n]}


def _key(question: LabelQuestion) -> Json:
    return asdict(question) | {"turn": "" if question.turn is None else question.turn}


def _question(session: labelling.LabellingSession, values: Values) -> Json:
    return _opened_json(session.opened(_question_of(values)))


def _question_of(values: Values) -> LabelQuestion:
    turn = values.get("turn")
    with errors_as(UsageError, "metric: "):
        metric = known_metric(_text(values, "metric"))
    with errors_as(UsageError, ""):
        turn = None if turn == "" else turn_number(turn)
    return LabelQuestion(
        conversation=_text(values, "conversation"),
        turn=turn,
        metric=metric,
        criterion=_text(values, "criterion"),
    )


def _save(session: labelling.LabellingSession, values: Values) -> Json:
    question = _question_of(values)
    with errors_as(UsageError, "answer: "):
        value = parse_value(question.metric, values.get("value"))
    times = values.get("times")
    if isinstance(times, bool) or not isinstance(times, int):
        raise UsageError("`times` must be a number: how often this was answered when it was shown")
    label = session.label(question, value, _text(values, "note").strip()[:_NOTE_CHARS])
    return _changed(session, session.save(label, times))


def _undo(session: labelling.LabellingSession, values: Values) -> Json:
    return _changed(session, session.undo(_question_of(values)))


def _changed(session: labelling.LabellingSession, opened: labelling.QuestionView) -> Json:
    return {
        **_opened_json(opened),
        "progress": labelling.progress_text(len(session.answered(session.labels()))),
    }


def _opened_json(opened: labelling.QuestionView) -> Json:
    question, conversation, mine = opened.question, opened.conversation, opened.mine
    choices = labelling.answer_choices(question.metric)
    return {
        "key": _key(question),
        "scenario": conversation.scenario,
        "asked": labelling.short_question(question),
        "whole": labelling.full_question(question),
        "choices": [asdict(each) for each in choices],
        **labelling.shortcuts(choices),
        "several": labelling.has_several_values(question.metric),
        "known": [list(row) for row in labelling.known_facts(conversation.background)],
        "turns": [
            {"index": index, "asked": index == question.turn, "rows": rows}
            for index, rows in labelling.displayed_turns(conversation, question.turn)
        ],
        "times": opened.times,
        "mine": mine
        and {"value": mine.value, "said": format_label_value(mine.value), "note": mine.note, "at": mine.at},
        "judge": opened.judge and _judge_json(opened.judge),
    }


def _judge_json(compared: Pair | Unscored) -> Json:
    if isinstance(compared, Unscored):
        no_answer = "There is nothing to compare with."
        return {"sameSide": None, "said": no_answer, "value": None, "reason": compared.error}
    answer = compared.judge
    return {
        "sameSide": compared.same_side,
        "said": compared.in_words,
        "value": format_label_value(answer.value),
        "reason": answer.reason,
    }
