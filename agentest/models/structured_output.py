"""Get answers with a given shape from models that may not support response formats: parsing and repairs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import chain
from typing import Any

from pydantic import BaseModel, ValidationError

from agentest.models.port import Answer, AnswerSource, CallKey, Level, Message, Question
from agentest.support.dates import mask_moments, without_marks
from agentest.support.errors import InvalidAnswer
from agentest.support.json_text import STRICT, json_or, well_formed
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.redaction import HIDDEN

MAX_REPAIRS = 2
HIDDEN_NOTE = (
    f"In the above, {HIDDEN} stands in place of a secret. Take it that the secret itself was written there."
)
_SHOWN_ANSWER_CHARS = 10_000
_HALF_PAIR = "a text in it is not valid Unicode (half a surrogate pair)"
_IS_HALF_PAIR = re.compile("surrogate|hex escape|unicode string")
"""Found in pydantic's message if JSON that Python accepts has half a surrogate pair."""


@dataclass(frozen=True, slots=True)
class AnswerProblem:
    """Why there is no answer. `is_part`: one of several answers is missing, so it may be asked for again."""

    text: str
    is_part: bool = False


class StructuredModel:
    """A model that returns answers with a given shape.

    If an answer has another shape, the request is repeated with the problem, at most twice.

    Args:
        hide: redacts secrets in prompts, except for the simulated user, who may need what it knows.
    """

    def __init__(self, answers: AnswerSource, hide: Callable[[str], str] = str) -> None:
        self.name = answers.name
        self._answers = answers
        self._hide = hide

    @property
    def level(self) -> Level | None:
        """The response format in use; None if no model is called because answers are replayed."""
        return getattr(self._answers, "level", None)

    async def ask(self, messages: Sequence[Message], answer: type[Answer], key: CallKey) -> Answer:
        """Return an answer with the given shape. Raises ModelUnavailable or InvalidAnswer."""
        if key.role != "user":
            messages = _without_secrets(messages, self._hide)
        conversation = list(messages)
        for repair in range(MAX_REPAIRS + 1):
            # An agent may have written lone surrogates, which protocols cannot carry.
            texts = [(each, well_formed(each["content"])) for each in conversation]
            sent, timeless = (
                [{**each, "content": shown(text)} for each, text in texts]
                for shown in (without_marks, mask_moments)
            )
            reply = await self._answers.answer(Question(sent, answer, key, repair, timeless))
            if reply.refusal:
                raise InvalidAnswer(f"model {self.name} refused to answer: {reply.refusal}")
            try:
                return read(reply.text, answer)
            except Unreadable as error:
                if repair == MAX_REPAIRS:
                    cut = "…" if len(reply.text) > _SHOWN_ANSWER_CHARS else ""
                    excerpt = reply.text[:_SHOWN_ANSWER_CHARS] + cut
                    raise InvalidAnswer(
                        f"model {self.name} gave no usable answer in {MAX_REPAIRS + 1} attempts: {error}; "
                        f"it wrote: {excerpt!r}"
                    ) from None
                problem = (
                    f"That answer cannot be used: {error}. "
                    "Answer again, with one JSON object of the required form and nothing else."
                )
                written: Message = {"role": "assistant", "content": reply.text or "(empty)"}
                conversation = [*messages, written, {"role": "user", "content": problem}]
        raise AssertionError("unreachable: the last repair either answers or raises")


def _without_secrets(messages: Sequence[Message], hide: Callable[[str], str]) -> Sequence[Message]:
    contents = [hide(message["content"]) for message in messages]
    if HIDDEN not in "\0".join(contents):
        return messages
    contents[-1] += f"\n\n{HIDDEN_NOTE}"
    return [{**message, "content": text} for message, text in zip(messages, contents, strict=True)]


# Truncated reasoning is not an answer: without its end, everything is reasoning.
_THINKING = re.compile(r"^(?:\s*<think(?:ing)?>.*?(?:</think(?:ing)?>|\Z))+", re.S)
_BEGINS_OBJECT = re.compile(r"""\{\s*(?:["'}]|\w+\s*:)""")
_STRING_OR_BRACE = re.compile(r'"(?:[^"\\]++|\\.)*+"|[{}]', re.S)
_BRACE = re.compile(r"[{}]")
_ESCAPED_OR_QUOTE = re.compile(r'\\.|"', re.S)


class Unreadable(ValueError):
    """The text contains no answer with the expected shape. The message tells the model why."""


def read(text: str, answer: type[Answer]) -> Answer:
    """Return the only object in the text that has the expected shape.

    Code fences, reasoning in `<think>` and text around the object are skipped. Nothing is converted: a number
    in quotes, a label outside the set or a duplicate key is invalid, and a nested object is never used as the
    answer. Raises Unreadable.
    """
    if text.startswith("{"):
        try:
            return _validated(text, answer)
        except Unreadable:
            pass  # it is not one object and nothing else
    without_answer = "there is reasoning and no answer" if text.strip() else "it is empty"
    text = _THINKING.sub("", text)
    valid: list[Answer] = []
    attempts: list[str] = []
    problem = "it contains no JSON object" if text.strip() else without_answer
    for source in _objects(text):
        try:
            valid.append(_validated(source, answer))
        except Unreadable as error:
            problem = str(error)
            if _is_attempt(source, answer):
                attempts.append(problem)
    if not valid:
        raise Unreadable(attempts[-1] if attempts else problem)
    if attempts or any(other != valid[0] for other in valid[1:]):
        raise Unreadable("it contains several different answers; give exactly one JSON object")
    return valid[0]


def _validated(source: str, answer: type[Answer]) -> Answer:
    try:
        _, end = _STRICT.raw_decode(source)
        if source[end:].strip():
            raise ValueError("there is text after the value")
        # Validate as JSON, where a choice is a text; as a Python value it would not be a valid choice.
        return answer.model_validate_json(source, strict=True)
    except ValidationError as error:
        problems = error.errors(include_url=False)[:5]
        if _IS_HALF_PAIR.search(problems[0]["msg"]):
            raise Unreadable(_HALF_PAIR) from None
        raise Unreadable("; ".join(_problem(details) for details in problems)) from None
    except (ValueError, RecursionError) as error:
        is_no_json = isinstance(error, json.JSONDecodeError | RecursionError)
        reason = "it is not valid JSON" if is_no_json else str(error)
        raise Unreadable(reason) from None


def _is_attempt(source: str, answer: type[BaseModel]) -> bool:
    """Return True if an object has the answer's keys, so that it is a wrong attempt at the answer."""
    value = json_or(source, {})
    required = {info.alias or name for name, info in answer.model_fields.items() if info.is_required()}
    return bool(required) and required <= value.keys()


def _problem(details: Any) -> str:
    at = ".".join(str(part) for part in details["loc"])
    return f"{at}: {details['msg']}" if at else str(details["msg"])


def _objects(text: str) -> Iterator[str]:
    """Yield the JSON objects in a text that are not nested in another one, in order.

    Text that starts like an object but is not one is skipped with its content, because a part of a broken
    object is not an answer. A brace in prose is just a character.
    """
    braces = _Braces(text)
    at = text.find("{")
    while at >= 0:
        if not _BEGINS_OBJECT.match(text, at):
            at = text.find("{", at + 1)
            continue
        end = braces.end_outside_strings(at)
        # Decode only this piece, because the decoder's errors count the lines of their whole input.
        if end > len(text) or not _is_object(text[at:end]):
            end = max(end, braces.end_anywhere(at))
            if end > len(text):
                yield text[at:]
                return
        else:
            yield text[at:end]
        at = text.find("{", end)


def _is_object(source: str) -> bool:
    try:
        return _FORM.raw_decode(source)[1] == len(source)
    except (ValueError, RecursionError):
        return False


class _Braces:
    """Find the matching closing braces in a text. The end is beyond the text if there is none."""

    def __init__(self, text: str) -> None:
        self._text = text

    def end_outside_strings(self, at: int) -> int:
        """Return the position after the closing brace for the one at `at`, ignoring braces in strings."""
        # No string begins after the last quote. Searching for the end of one would take quadratic time.
        strings_end = max(at, self._last_quote + 1)
        strings_and_braces = _STRING_OR_BRACE.finditer(self._text, at, strings_end)
        depth = 0
        for match in chain(strings_and_braces, _BRACE.finditer(self._text, strings_end)):
            depth += {"{": 1, "}": -1}.get(match[0], 0)
            if depth == 0:
                return match.end()
        return len(self._text) + 1

    def end_anywhere(self, at: int) -> int:
        """Return the position after the closing brace, counting braces in strings as well."""
        return self._closing.get(at, len(self._text)) + 1

    @cached_property
    def _last_quote(self) -> int:
        found = _ESCAPED_OR_QUOTE.finditer(self._text)
        return max((match.start() for match in found if match[0] == '"'), default=-1)

    @cached_property
    def _closing(self) -> dict[int, int]:
        opened: list[int] = []
        closing = {}
        for match in _BRACE.finditer(self._text):
            if match[0] == "{":
                opened.append(match.start())
            elif opened:
                closing[opened.pop()] = match.start()
        return closing


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("a key is given twice")
    return values


_FORM = json.JSONDecoder(parse_int=str, parse_float=str)
_STRICT = json.JSONDecoder(object_pairs_hook=_without_duplicates, **STRICT)


@lru_cache(maxsize=256)  # some shapes are created for a single request
def answer_schema(answer: type[BaseModel]) -> dict[str, Any]:
    """Return the JSON Schema of an answer in the subset that strict structured output accepts."""
    schema = answer.model_json_schema()
    _make_strict(schema)
    return schema


def _make_strict(schema: Any) -> None:
    if not isinstance(schema, dict):
        return
    schema.pop("title", None)
    schema.pop("default", None)
    # These contain names chosen by the answer, not keywords: a field may be called `default`.
    for named in ("properties", "$defs"):
        for inner in schema.get(named, {}).values():
            _make_strict(inner)
    for keyword in ("items", "prefixItems", "additionalProperties", "anyOf", "oneOf", "allOf"):
        value = schema.get(keyword)
        for inner in value if isinstance(value, list) else [value]:
            _make_strict(inner)
    if "properties" in schema:
        schema["additionalProperties"] = False
        schema["required"] = list(schema["properties"])
