"""Questions about conversations, the labels with which people answer them, and the file of both."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from pydantic import StrictBool
from pydantic.dataclasses import dataclass as form

from agentest.domain.messages import EarlierMessage
from agentest.domain.metrics import (
    ABOUT_CALLS,
    BUILTIN,
    CRITERIA,
    GOAL,
    METRICS,
    NO_FAILURE,
    Kind,
    MetricLevel,
    metric_name,
)
from agentest.domain.results import CriterionOutcome, GoalOutcome
from agentest.domain.transcript import Turn
from agentest.judging.judge_input import JudgeBackground
from agentest.plugins.adk.formats.eval_set import CLOSED
from agentest.plugins.adk.formats.problems import validated
from agentest.store.codec import CODECS
from agentest.support.errors import UsageError, errors_as
from agentest.support.files import create_file, make_folder, read_user_bytes
from agentest.support.json_text import STRICT, Json, encoded, json_or, plain
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.text import did_you_mean

MOST_OF_A_FAULT = 3  # the highest number from 1 to 5 that counts as a fault
_ID_CHARS = 12
_QUOTED = re.compile(r"\s*[0-9]\s*")  # a number as text; no number has more than one digit

Value = int | str | tuple[str, ...]
"""A number from 1 to 5, a goal's outcome, a criterion's outcome, or labels by precedence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledConversation:
    """A self-contained conversation as judges see it.

    Attributes:
        id: unique in the file; a hash of the content if it is not given.
        scenario, source: for people: the name of the scenario, and where the conversation was found.
        criteria: sentences that should hold for it.
        complete: True if the conversation ended; if False, there are no questions about it as a whole.
    """

    id: str
    background: JudgeBackground
    turns: tuple[Turn, ...]
    criteria: tuple[str, ...] = ()
    scenario: str = ""
    source: str = ""
    complete: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelQuestion:
    """The question that a label answers: a metric of a turn or a conversation, or one criterion."""

    conversation: str
    turn: int | None
    metric: str  # a built-in metric, or CRITERIA
    criterion: str = ""

    @property
    def description(self) -> str:
        """Describe the question for people, without its conversation and turn."""
        return f"criterion {self.criterion!r}" if self.criterion else self.metric


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """One person's answer. If a person has two labels for one question, the later one counts."""

    question: LabelQuestion
    value: Value
    by: str = ""
    at: str = ""  # time in ISO 8601
    note: str = ""


@dataclass(slots=True)
class LabelSet:
    """The content of a labels file."""

    conversations: dict[str, LabelledConversation] = field(default_factory=dict)
    labels: list[Label] = field(default_factory=list)

    def by_question(self) -> dict[LabelQuestion, dict[str, Label]]:
        """Map question → person → their last label, in the order in which questions were first answered."""
        by_question: dict[LabelQuestion, dict[str, Label]] = {}
        for label in self.labels:
            by_question.setdefault(label.question, {})[label.by] = label
        return by_question


def content_id(
    background: JudgeBackground, criteria: Sequence[str], turns: Sequence[Turn], *, complete: bool = True
) -> str:
    """Return an id made of the content, because ids of a run repeat from run to run."""
    known = CODECS.write(background)
    # Leave the ids of conversations without a date or a history, or whose end is known, as they always were.
    for key in ("ended", *(name for name in ("date", "history") if not known[name])):
        del known[key]
    content = {
        "background": known | {"startedAt": ""},
        "criteria": list(criteria),
        "turns": [
            [turn.user_message, turn.agent_message, *([c.name, c.args, c.result] for c in turn.tool_calls)]
            for turn in turns
        ],
        "complete": complete,
    }
    text = json.dumps(plain(content), sort_keys=True, ensure_ascii=True)
    return "c-" + hashlib.sha256(text.encode()).hexdigest()[:_ID_CHARS]


def known_metric(name: str) -> str:
    """Return the metric's canonical name if it can be labeled. Raises ValueError."""
    metric = metric_name(name)
    if metric == CRITERIA or metric in BUILTIN:
        return metric
    if metric in METRICS:
        raise ValueError(
            f"{name!r} compares with what an evaluation set expects: its judge cannot be calibrated yet; "
            f"labels are for {', '.join([*BUILTIN, CRITERIA])}"
        )
    raise ValueError(f"there is no metric {name!r}; {did_you_mean(name, [*BUILTIN, CRITERIA])}")


def metrics_named(names: Iterable[str]) -> tuple[str, ...]:
    """Return the named metrics in the order of the table; all if none is named. Raises ValueError."""
    wanted = set(map(known_metric, names))
    return tuple(name for name in (*BUILTIN, CRITERIA) if not wanted or name in wanted)


def questions_of(conversation: LabelledConversation, metrics: Iterable[str]) -> Iterator[LabelQuestion]:
    """Yield every question about a conversation for these metrics, in reading order."""
    names = tuple(metrics)
    for turn in conversation.turns:
        for metric in names:
            if metric in BUILTIN and BUILTIN[metric].level is MetricLevel.TURN:
                yield LabelQuestion(conversation=conversation.id, turn=turn.turn_index, metric=metric)
    if not conversation.complete:
        return
    background = conversation.background
    if GOAL in names and (background.goal or background.expected_outcome):
        yield LabelQuestion(conversation=conversation.id, turn=None, metric=GOAL)
    for text in conversation.criteria if CRITERIA in names else ():
        yield LabelQuestion(conversation=conversation.id, turn=None, metric=CRITERIA, criterion=text)


def is_answerable(question: LabelQuestion, conversation: LabelledConversation) -> bool:
    """Return False for a question about tool calls that are not visible, which a run does not ask either."""
    return not (question.metric in ABOUT_CALLS and conversation.background.unseen)


def choices(metric: str) -> Mapping[str, str]:
    """Return the answers to a metric's question with their meaning; {} for numbers from 1 to 5."""
    if metric == CRITERIA:
        return {CriterionOutcome.MET: "", CriterionOutcome.VIOLATED: "", CriterionOutcome.CANNOT_TELL: ""}
    if metric == GOAL:
        return {
            GoalOutcome.REACHED: "what the user came for is done",
            GoalOutcome.REACHED_WRONGLY: "it is done, but with harm, a leak or something forbidden",
            GoalOutcome.RIGHTLY_NOT_REACHED: "it could not or must not be done, and the user was told",
            GoalOutcome.LEFT_OPEN: "the test ended while the assistant rightly waited for an answer",
            GoalOutcome.NOT_REACHED: "it should have been done, and was not",
        }
    return BUILTIN[metric].labels


def parse_value(metric: str, raw: Any) -> Value:
    """Parse the value of a label: letter case does not matter, and numbers may be quoted.

    Raises ValueError, which states the expected values.
    """
    if metric not in (CRITERIA, GOAL) and BUILTIN[metric].kind is Kind.SCALE:
        number = _whole_number(raw)
        if number is None or not 1 <= number <= 5:
            raise ValueError(f"expected a whole number from 1 to 5, found {raw!r:.80}")
        return number
    known = choices(metric)
    if metric == GOAL and (number := _whole_number(raw)) in (0, 1):
        return str(GoalOutcome.REACHED if number else GoalOutcome.NOT_REACHED)
    if metric in (CRITERIA, GOAL):
        return _choice(known, raw)
    return _labels(known, [_choice(known, each) for each in (raw if isinstance(raw, list) else [raw])])


def _choice(known: Iterable[str], raw: Any) -> str:
    names = {name.casefold(): str(name) for name in known}
    choice = names.get(" ".join(raw.casefold().replace("_", " ").split())) if isinstance(raw, str) else None
    if choice is None:
        raise ValueError(f"expected one of {', '.join(map(repr, names.values()))}, found {raw!r:.80}")
    return choice


def _whole_number(raw: Any) -> int | None:
    if isinstance(raw, str):
        return int(raw) if _QUOTED.fullmatch(raw) else None
    if isinstance(raw, bool) or not isinstance(raw, int | float) or raw not in range(10):
        return None
    return int(raw)


def _labels(known: Iterable[str], chosen: Sequence[str]) -> tuple[str, ...]:
    if not chosen:
        raise ValueError(f"expected a label; where nothing failed, write {NO_FAILURE!r}")
    if NO_FAILURE in chosen and len(set(chosen)) > 1:
        raise ValueError(
            f"{NO_FAILURE!r} and {next(g for g in chosen if g != NO_FAILURE)!r} exclude each other"
        )
    return tuple(label for label in known if label in chosen)


def is_fault(value: Value) -> bool:
    """Return True if a value reports a fault."""
    if isinstance(value, int):
        return value <= MOST_OF_A_FAULT
    if isinstance(value, tuple):
        return value != (NO_FAILURE,)
    return value in (GoalOutcome.NOT_REACHED, GoalOutcome.REACHED_WRONGLY, CriterionOutcome.VIOLATED)


def format_label_value(value: Value) -> str:
    """Format a value for people."""
    return " + ".join(value) if isinstance(value, tuple) else str(value)


@form(config=CLOSED, frozen=True)
class _EarlierMessage:
    role: Literal["user", "assistant", "tool call"]
    text: str


@form(config=CLOSED, frozen=True)
class _Background:
    """What may be given of a `JudgeBackground`."""

    goal: str = ""
    profile: str = ""
    knowledge: tuple[str, ...] = ()
    expected_outcome: str = ""
    instructions: str = ""
    tools: str = ""
    date: str = ""
    unseen: str = ""
    ended: str = ""
    history: tuple[_EarlierMessage, ...] = ()


@form(config=CLOSED, frozen=True)
class _ConversationLine:
    turns: tuple[Any, ...] = ()
    id: str = ""
    scenario: str = ""
    source: str = ""
    background: _Background = _Background()
    criteria: tuple[str, ...] = ()
    complete: StrictBool = True


@form(config=CLOSED, frozen=True)
class _LabelLine:
    conversation: str
    value: Any
    turn: Any = None
    metric: str = ""
    criterion: str = ""
    by: str = ""
    at: str = ""
    note: str = ""


_CALL_DEFAULTS = {"result": None, "mocked": False, "invalidArguments": None, "error": None}
_SHOWN_CHARS = 200
_QUOTED_TURN = re.compile(r"\s*[0-9]{1,6}\s*")


def is_labels(content: bytes) -> bool:
    """Return True if the first non-blank line shows that a file is a labels file."""
    data = json_or(next((line for line in content.split(b"\n") if line.strip()), b""))
    return isinstance(data, dict) and data.get("type") in ("conversation", "label") and "number" not in data


def read_labels(path: Path) -> LabelSet:
    """Read the conversations and labels of a file. Raises UsageError, which names file and line."""
    return LabelsFile(path).read()


class LabelsFile:
    """A labels file that is reread as it grows: lines that have not changed are not parsed again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._reset()

    def _reset(self) -> None:
        self._known, self._lines, self._labels = b"", 0, LabelSet()

    def read(self) -> LabelSet:
        """Return the conversations and labels. Raises UsageError, which names file and line."""
        with errors_as(UsageError, f"{self.path} cannot be read: ", OSError):
            content = read_user_bytes(self.path, most=None)
        if not content.startswith(self._known):
            self._reset()
        try:
            self._parse_lines(content[len(self._known) :])
        except UsageError:
            self._reset()
            raise
        labels = self._labels
        if content.endswith(b"\n"):
            self._known = content
        else:  # the last line may be incomplete
            self._reset()
        return labels

    def append(self, *values: LabelledConversation | Label) -> None:
        """Append a line for each value, all at once, so that no label is lost. Raises UsageError."""
        lines = (label_line(v) if isinstance(v, Label) else conversation_line(v) for v in values)
        content = b"".join(encoded(plain(line)) + b"\n" for line in lines)
        with errors_as(UsageError, f"{self.path} cannot be written: ", OSError):
            make_folder(self.path.parent)
            with open(self.path, "ab+", opener=create_file) as file:
                if file.seek(0, 2):
                    file.seek(-1, 2)
                    content = content if file.read(1) == b"\n" else b"\n" + content
                file.write(content)

    def remove_last(self, label: Label) -> bool:
        """Remove the last line if it is that of a label; False if it is another. Raises UsageError."""
        line = encoded(plain(label_line(label))) + b"\n"
        with (
            errors_as(UsageError, f"{self.path} cannot be written: ", OSError),
            self.path.open("rb+") as file,
        ):
            file.seek(max(0, file.seek(0, 2) - len(line)))
            start = file.tell()
            if found := file.read() == line:
                file.truncate(start)
            return found

    def _parse_lines(self, content: bytes) -> None:
        for line in self._text(content).split("\n"):
            self._lines += 1
            if line.strip():
                try:
                    _add_line(self._labels, _object(line))
                except ValueError as error:
                    raise UsageError(f"{self.path}:{self._lines}: {error}") from None
                except RecursionError:
                    raise UsageError(f"{self.path}:{self._lines}: is nested too deeply") from None
        self._lines -= 1  # text after the last line break is not a complete line yet

    def _text(self, content: bytes) -> str:
        try:
            return content.decode("utf-8" if self._known else "utf-8-sig")
        except UnicodeDecodeError as error:
            at = len(self._known) + error.start
            raise UsageError(f"{self.path} is not UTF-8 text: {error.reason} at byte {at}") from None


def _object(line: str) -> dict[str, Any]:
    try:
        data = json.loads(line, **STRICT)
    except ValueError as error:
        raise ValueError(f"is not JSON ({error}); every line is one JSON object") from None
    if not isinstance(data, dict):
        raise ValueError(f"expected a JSON object, found {line.strip():.80}")
    return data


def _add_line(labels: LabelSet, data: dict[str, Any]) -> None:
    """Add a line; a label follows its conversation. Raises ValueError."""
    line = {key: value for key, value in data.items() if value is not None and key != "type"}
    match data.get("type"):
        case "conversation":
            conversation = _conversation(validated(_ConversationLine, line))
            known = labels.conversations.setdefault(conversation.id, conversation)
            if _content(known) != _content(conversation):
                raise ValueError(
                    f"the id {conversation.id!r} is that of another conversation above; "
                    "give each an id of its own"
                )
        case "label":
            labels.labels.append(_label(labels, validated(_LabelLine, line)))
        case None:
            raise ValueError("`type` must be conversation or label, and it is missing")
        case other:
            raise ValueError(f"`type` must be conversation or label, found {other!r:.80}")


def _conversation(line: _ConversationLine) -> LabelledConversation:
    if not line.turns:
        raise ValueError("`turns` must be a list of at least one turn, in the form of results.json")
    turns = tuple(_turn(turn, index) for index, turn in enumerate(line.turns))
    given = asdict(line.background)
    given["history"] = tuple(EarlierMessage(**each) for each in given["history"])
    background = JudgeBackground(**given, started_at=turns[0].started_at or "")
    return LabelledConversation(
        id=line.id or content_id(background, line.criteria, turns, complete=line.complete),
        background=background,
        turns=turns,
        criteria=line.criteria,
        scenario=line.scenario,
        source=line.source,
        complete=line.complete,
    )


def _turn(data: Any, index: int) -> Turn:
    if isinstance(data, dict):
        data = {"turnIndex": index, **data}
        calls = data.get("toolCalls", [])
        if isinstance(calls, list):
            defaults = {**_CALL_DEFAULTS, "turnIndex": index}
            data["toolCalls"] = [defaults | call if isinstance(call, dict) else call for call in calls]
    for error in _turn_validator().iter_errors(data):
        raise ValueError(f"turns[{index}]{error.json_path[1:]}: {error.message[:_SHOWN_CHARS]}")
    turn = CODECS.read(Turn, data)
    if turn.turn_index != index:
        raise ValueError(f"turns[{index}].turnIndex: must be {index}, found {turn.turn_index}")
    return turn


def _label(labels: LabelSet, line: _LabelLine) -> Label:
    if bool(line.metric) == bool(line.criterion):
        raise ValueError("a label has either `metric` or `criterion`, the sentence in its own words")
    metric = CRITERIA if line.criterion else known_metric(line.metric)
    if not line.criterion and metric == CRITERIA:
        raise ValueError("`criterion` is missing: write the sentence that is judged")
    question = LabelQuestion(
        conversation=line.conversation,
        turn=turn_number(line.turn),
        metric=metric,
        criterion=line.criterion,
    )
    _check(question, labels.conversations.get(question.conversation))
    with errors_as(ValueError, f"`value` of {metric}: "):
        value = parse_value(metric, line.value)
    return Label(question=question, value=value, by=line.by, at=line.at, note=line.note)


def _check(question: LabelQuestion, conversation: LabelledConversation | None) -> None:
    if conversation is None:
        raise ValueError(
            f"no conversation {question.conversation!r} stands above; its line comes before its labels"
        )
    questions = list(questions_of(conversation, [question.metric]))
    if question in questions:
        return
    if question.criterion:
        raise ValueError(f"the conversation has no criterion {question.criterion!r:.100}")
    if not questions:
        no_goal, cut = "it has no goal and no expected outcome", "it did not come to its end"
        why = no_goal if conversation.complete else cut
        raise ValueError(f"{question.metric} cannot be answered for this conversation: {why}")
    turns = questions[0].turn is not None
    expected = f"a turn from 0 to {len(conversation.turns) - 1}" if turns else "null: it is of the whole"
    raise ValueError(f"`turn` of {question.metric} must be {expected}; found {question.turn}")


def _content(each: LabelledConversation) -> str:
    return content_id(each.background, each.criteria, each.turns, complete=each.complete)


def turn_number(turn: Any) -> int | None:
    """Return the turn of a question, which may be quoted; None for the whole. Raises ValueError."""
    if isinstance(turn, str) and _QUOTED_TURN.fullmatch(turn):
        return int(turn)
    if turn is not None and (isinstance(turn, bool) or not isinstance(turn, int)):
        raise ValueError(f"`turn` must be a turn's number, from 0, or null; found {turn!r:.80}")
    return turn


@cache
def _turn_validator() -> Any:
    from jsonschema.validators import validator_for  # takes a tenth of a second

    schema = json.loads(files("agentest").joinpath("schemas/results.schema.json").read_text("utf-8"))
    turn = {**schema["$defs"]["turn"], "required": ["userMessage", "agentMessage"], "$defs": schema["$defs"]}
    return validator_for(schema)(turn)


def conversation_line(conversation: LabelledConversation) -> Json:
    """Return a conversation as a line, without empty fields."""
    background = CODECS.write(conversation.background)
    line: Json = {
        "type": "conversation",
        "id": conversation.id,
        "scenario": conversation.scenario,
        "source": conversation.source,
        "background": {key: value for key, value in background.items() if value and key != "startedAt"},
        "criteria": list(conversation.criteria),
        "complete": None if conversation.complete else False,
        "turns": [CODECS.write(turn) for turn in conversation.turns],
    }
    return {key: value for key, value in line.items() if value or value is False}


def label_line(label: Label) -> Json:
    """Return a label as a line."""
    question = label.question
    values = label.value if isinstance(label.value, tuple) else (label.value,)
    line: Json = {"type": "label", "conversation": question.conversation}
    if question.turn is not None:
        line["turn"] = question.turn
    line |= {"criterion": question.criterion} if question.criterion else {"metric": question.metric}
    line["value"] = values[0] if len(values) == 1 else list(values)
    return line | {key: text for key in ("by", "at", "note") if (text := getattr(label, key))}
