"""Read and append to the labels file: JSON lines of conversations and of people's labels."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from agentest.calibration.labels import (
    Label,
    LabelledConversation,
    LabelQuestion,
    LabelSet,
    content_id,
    known_metric,
    parse_value,
    questions_of,
)
from agentest.domain.metrics import CRITERIA
from agentest.domain.transcript import Turn
from agentest.judging.judge_input import JudgeBackground
from agentest.store.codec import CODECS
from agentest.support.errors import UsageError
from agentest.support.files import read_user_bytes
from agentest.support.json_text import Json, encoded, plain, reject_constant
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.text import did_you_mean, snake_keys

_BACKGROUND = ("goal", "profile", "knowledge", "expected_outcome", "instructions", "tools", "date", "unseen")
_CONVERSATION = ("type", "id", "scenario", "source", "background", "criteria", "complete", "turns")
_LABEL = ("type", "conversation", "turn", "metric", "criterion", "value", "by", "at", "note")
_SHOWN_CHARS = 200
_QUOTED = re.compile(r"\s*[0-9]{1,6}\s*")
"""A turn's number as text."""


def is_labels(content: bytes) -> bool:
    """Return True if the first non-blank line shows that a file is a labels file."""
    first = next((line for line in content.split(b"\n") if line.strip()), b"")
    try:
        data = json.loads(first)
    except (ValueError, RecursionError):
        return False
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
        self._known, self._lines, self._reader = b"", 0, _LabelReader()

    def read(self) -> LabelSet:
        """Return the conversations and labels. Raises UsageError, which names file and line."""
        try:
            content = read_user_bytes(self.path, most=None)
        except OSError as error:
            raise UsageError(f"{self.path} cannot be read: {error.strerror}") from None
        if not content.startswith(self._known):
            self._reset()
        try:
            self._parse_lines(content[len(self._known) :])
        except UsageError:
            self._reset()
            raise
        labels = self._reader.read
        if content.endswith(b"\n"):
            self._known = content
        else:  # the last line may be incomplete
            self._reset()
        return labels

    def _parse_lines(self, content: bytes) -> None:
        for line in self._text(content).split("\n"):
            self._lines += 1
            if line.strip():
                try:
                    self._reader.add(_object(line))
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
        data = json.loads(line, parse_constant=reject_constant)
    except ValueError as error:
        raise ValueError(f"is not JSON ({error}); every line is one JSON object") from None
    if not isinstance(data, dict):
        raise ValueError(f"expected a JSON object, found {line.strip():.80}")
    return data


class _LabelReader:
    """Parse line after line; a label follows its conversation."""

    def __init__(self) -> None:
        self.read = LabelSet()
        self._turn_schema: Callable[[Any], str | None] | None = None

    def add(self, data: dict[str, Any]) -> None:
        """Add a line. Raises ValueError."""
        match data.get("type"):
            case "conversation":
                conversation = self._conversation(_checked_keys(data, _CONVERSATION))
                known = self.read.conversations.setdefault(conversation.id, conversation)
                if _content(known) != _content(conversation):
                    raise ValueError(
                        f"the id {conversation.id!r} is that of another conversation above; "
                        "give each an id of its own"
                    )
            case "label":
                self.read.labels.append(self._label(_checked_keys(data, _LABEL)))
            case None:
                raise ValueError("`type` must be conversation or label, and it is missing")
            case other:
                raise ValueError(f"`type` must be conversation or label, found {other!r:.80}")

    def _conversation(self, data: dict[str, Any]) -> LabelledConversation:
        turns = self._turns(data.get("turns"))
        background = replace(_background(data.get("background", {})), started_at=turns[0].started_at or "")
        criteria = _texts(data.get("criteria", []), "criteria")
        complete = data.get("complete", True)
        if not isinstance(complete, bool):
            raise ValueError(f"`complete` must be true or false, found {complete!r:.80}")
        id = _text(data, "id")
        return LabelledConversation(
            id=id or content_id(background, criteria, turns, complete=complete),
            background=background,
            turns=turns,
            criteria=criteria,
            scenario=_text(data, "scenario"),
            source=_text(data, "source"),
            complete=complete,
        )

    def _turns(self, data: Any) -> tuple[Turn, ...]:
        if not isinstance(data, list) or not data:
            raise ValueError("`turns` must be a list of at least one turn, in the form of results.json")
        self._turn_schema = self._turn_schema or _turn_problem()
        return tuple(self._turn(turn, index) for index, turn in enumerate(data))

    def _turn(self, data: Any, index: int) -> Turn:
        assert self._turn_schema
        if isinstance(data, dict):
            data = {"turnIndex": index, **data}
            calls = data.get("toolCalls", [])
            if isinstance(calls, list):
                data["toolCalls"] = [_with_defaults(call, index) for call in calls]
        if problem := self._turn_schema(data):
            raise ValueError(f"turns[{index}]{problem}")
        turn = CODECS.read(Turn, data)
        if turn.turn_index != index:
            raise ValueError(f"turns[{index}].turnIndex: must be {index}, found {turn.turn_index}")
        return turn

    def _label(self, data: dict[str, Any]) -> Label:
        if ("metric" in data) == ("criterion" in data):
            raise ValueError("a label has either `metric` or `criterion`, the sentence in its own words")
        metric = CRITERIA if "criterion" in data else known_metric(_needed_text(data, "metric"))
        if "criterion" not in data and metric == CRITERIA:
            raise ValueError("`criterion` is missing: write the sentence that is judged")
        question = LabelQuestion(
            conversation=_needed_text(data, "conversation"),
            turn=_turn_number(data.get("turn")),
            metric=metric,
            criterion=_text(data, "criterion"),
        )
        self._check(question)
        if "value" not in data:
            raise ValueError("`value` is missing")
        try:
            value = parse_value(metric, data["value"])
        except ValueError as error:
            raise ValueError(f"`value` of {metric}: {error}") from None
        texts = {key: _text(data, key) for key in ("by", "at", "note")}
        return Label(question=question, value=value, **texts)

    def _check(self, question: LabelQuestion) -> None:
        """Raise ValueError for a question that the conversation does not have."""
        conversation = self.read.conversations.get(question.conversation)
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
            raise ValueError(
                f"{question.metric} cannot be asked of this conversation: {_incomplete_reason(conversation)}"
            )
        turns = questions[0].turn is not None
        expected = f"a turn from 0 to {len(conversation.turns) - 1}" if turns else "null: it is of the whole"
        raise ValueError(f"`turn` of {question.metric} must be {expected}; found {question.turn}")


def _incomplete_reason(conversation: LabelledConversation) -> str:
    return "it has no goal and no expected outcome" if conversation.complete else "it did not come to its end"


def _content(each: LabelledConversation) -> str:
    return content_id(each.background, each.criteria, each.turns, complete=each.complete)


def _checked_keys(data: Mapping[str, Any], valid: tuple[str, ...], inside: str = "") -> dict[str, Any]:
    known: dict[str, Any] = snake_keys(data, valid)
    for key in known:
        if key not in valid:
            raise ValueError(f"unknown key `{inside}{key}`; {did_you_mean(str(key), valid)}")
    return known


def _background(data: Any) -> JudgeBackground:
    if not isinstance(data, dict):
        raise ValueError(f"`background` must be an object, found {data!r:.80}")
    known = _checked_keys(data, _BACKGROUND, "background.")
    texts = {key: _text(known, key) for key in _BACKGROUND if key != "knowledge"}
    return JudgeBackground(**texts, knowledge=_texts(known.get("knowledge", []), "background.knowledge"))


def _turn_number(turn: Any) -> int | None:
    if isinstance(turn, str) and _QUOTED.fullmatch(turn):
        return int(turn)
    if turn is not None and (isinstance(turn, bool) or not isinstance(turn, int)):
        raise ValueError(f"`turn` must be a turn's number, from 0, or null; found {turn!r:.80}")
    return turn


def _text(data: Mapping[str, Any], key: str) -> str:
    value = data.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ValueError(f"`{key}` must be a text, found {value!r:.80}")
    return value


def _needed_text(data: Mapping[str, Any], key: str) -> str:
    text = _text(data, key)
    if not text:
        raise ValueError(f"`{key}` is missing")
    return text


def _texts(value: Any, key: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise ValueError(f"`{key}` must be a list of texts, found {value!r:.80}")
    return tuple(value)


def _with_defaults(call: Any, turn: int) -> Any:
    if not isinstance(call, dict):
        return call
    return {
        "result": None,
        "mocked": False,
        "turnIndex": turn,
        "invalidArguments": None,
        "error": None,
        **call,
    }


def _turn_problem() -> Callable[[Any], str | None]:
    """Return a validator of turns: the schema of results.json with few required fields."""
    from jsonschema.validators import validator_for  # takes a tenth of a second

    schema = json.loads(files("agentest").joinpath("schemas/results.schema.json").read_text("utf-8"))
    turn = {**schema["$defs"]["turn"], "required": ["userMessage", "agentMessage"], "$defs": schema["$defs"]}
    validator = validator_for(schema)(turn)

    def problem(data: Any) -> str | None:
        error = next(iter(validator.iter_errors(data)), None)
        return f"{error.json_path[1:]}: {error.message[:_SHOWN_CHARS]}" if error else None

    return problem


def conversation_line(conversation: LabelledConversation) -> Json:
    """Return a conversation as a line, without empty fields."""
    background = CODECS.write(conversation.background)
    background.pop("startedAt")
    line: Json = {
        "type": "conversation",
        "id": conversation.id,
        "scenario": conversation.scenario,
        "source": conversation.source,
        "background": {key: value for key, value in background.items() if value},
        "criteria": list(conversation.criteria),
        "complete": conversation.complete,
        "turns": [CODECS.write(turn) for turn in conversation.turns],
    }
    if conversation.complete:
        line.pop("complete")
    return {key: value for key, value in line.items() if value or key == "complete"}


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


@dataclass(slots=True)
class LabelWriter:
    """Append to a labels file line by line, so that no label is lost if the program ends."""

    path: Path
    known: set[str]
    """Ids of the conversations in the file."""

    def add(self, conversation: LabelledConversation, label: Label) -> None:
        """Write a label, and its conversation if the file lacks it. Raises UsageError."""
        lines = [] if conversation.id in self.known else [conversation_line(conversation)]
        content = b"".join(encoded(plain(line)) + b"\n" for line in [*lines, label_line(label)])
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab+") as file:
                file.write(b"".join(self._new_line(file)) + content)
        except OSError as error:
            raise UsageError(f"{self.path} cannot be written: {error.strerror}") from None
        self.known.add(conversation.id)

    @staticmethod
    def _new_line(file: Any) -> Iterator[bytes]:
        """Yield a line break if the last line has none."""
        if file.seek(0, 2):
            file.seek(-1, 2)
            if file.read(1) != b"\n":
                yield b"\n"
