"""Parse the options `state`, `check`, `tools` and `user_tools` of a scenario, and the personas of `profile`.

Invalid values raise ValueError with a message that names the option.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import lru_cache
from typing import Any

from agentest.domain.changes import TOOL_FAULTS, ChangedAnswers, Fault
from agentest.mocks.binding import Mock, MockSequence, bind
from agentest.mocks.calls import HttpResponse
from agentest.scenarios.matchers.display import brief
from agentest.scenarios.matchers.validity import word_in_value
from agentest.scenarios.model import Persona
from agentest.scenarios.parser import (
    ProblemCollector,
    as_list,
    checked,
    has_text_keys,
    kind_of,
    known_keys,
    listed,
    nonempty_text,
    positive,
)
from agentest.support.calling import accepted_values
from agentest.support.errors import ToolError, errors_as
from agentest.support.json_text import BuiltinState, NotJson, builtin_bytes, json_text
from agentest.support.text import did_you_mean, snake_case

_SENTENCES: Mapping[str, str] = {
    "manner": "{}",
    "words": "Your messages have at most {} words.",
    "sentences": "Your messages have at least {} sentences.",
    "facts": "You give at most {} of the facts that you know in one message.",
    "typos": "About {} of a hundred words have a typing error, but names, numbers and dates are right.",
    "off_topic": "Every {} messages you mention something that has nothing to do with what you want.",
    "changes": "You change a choice that you have made {} times.",
    "doubts": "You ask the assistant to confirm every {} statements.",
    "pushes": "When the assistant refuses something, you ask for it in {} other ways.",
}
"""Trait → how the model that plays the user is told about it. All but `manner` are numbers."""
COUNTS = tuple(name for name in _SENTENCES if name != "manner")  # the traits that are numbers

PERSONAS: Mapping[str, Mapping[str, Any]] = {
    "impatient": {
        "manner": "You are in a hurry and say so when the assistant takes long or asks much.",
        "words": 15,
        "patience": 1,
    },
    "vague": {
        "manner": "You describe things without names, numbers and dates until the assistant asks for them.",
        "words": 20,
        "facts": 1,
    },
    "verbose": {
        "manner": "You tell the whole story, with what you want somewhere in the middle.",
        "sentences": 5,
    },
    "terse": {"manner": "You write fragments instead of sentences.", "words": 6, "facts": 1},
    "non_native": {
        "manner": "You learned this language as an adult: short sentences, simple words, errors of grammar.",
        "words": 25,
        "typos": 3,
    },
    "elderly": {
        "manner": "You are not used to chats: you greet, thank, and ask what technical words mean.",
        "doubts": 3,
        "patience": 4,
    },
    "adversarial": {
        "manner": "You want more than you are entitled to: you claim exceptions, authority and urgency.",
        "pushes": 3,
        "patience": 4,
    },
    "distracted": {
        "manner": "You do other things at the same time, and sometimes answer an earlier question.",
        "off_topic": 3,
        "typos": 3,
    },
    "angry": {
        "manner": "You have had trouble with this before and are angry, without insults.",
        "words": 40,
        "patience": 2,
    },
    "polite": {"manner": "You are friendly and never contradict directly.", "patience": 4},
    "expert": {
        "manner": "You know the subject, use its terms, and give all that is needed at once.",
        "words": 40,
        "patience": 2,
    },
    "indecisive": {"manner": "You ask for the possibilities before you choose.", "changes": 2, "doubts": 2},
}
"""Name → traits. `patience` is the number of identical unhelpful answers after which the user gives up."""


def persona(*names: str, text: str = "", patience: int | None = None, **traits: Any) -> Persona:
    """Return a persona for the `profile` of a scenario, mixed from built-in ones.

    A trait that several of them have is that of the last one.

    Args:
        names: `impatient`, `vague`, `verbose`, `terse`, `non_native`, `elderly`, `adversarial`, `distracted`,
            `angry`, `polite`, `expert` or `indecisive`.
        text: who the user is, in front of how they behave.
        patience: number of identical unhelpful answers after which the user gives up.
        traits: replace traits: `words` and `sentences` of a message, `facts` given at once, `typos` in a
            hundred words, `off_topic` every so many messages, `changes` of mind, `doubts` every so many
            statements, `pushes` after a refusal. None removes one.

    Raises ValueError for unknown names and values that no trait can have.
    """
    mixed: dict[str, Any] = {}
    manners = []
    for name in names:
        known = str(name).replace("-", "_").replace(" ", "_")
        if known not in PERSONAS:
            raise ValueError(f"persona: unknown persona {name!r}; {did_you_mean(known, PERSONAS)}")
        mixed |= PERSONAS[known]
        manners.append(PERSONAS[known]["manner"])
    for trait, value in traits.items():
        if trait not in COUNTS:
            raise ValueError(
                f"persona: unknown trait `{trait}`; {did_you_mean(trait, (*COUNTS, 'patience'))}"
            )
        mixed[trait] = None if value is None else positive(value, f"persona: `{trait}`")
    if patience is not None:
        mixed["patience"] = positive(patience, "persona: `patience`")
    if not names and not text and not traits:
        raise ValueError(f"persona: name at least one of {', '.join(PERSONAS)}")
    mixed.pop("manner", None)
    gives_up_after = mixed.pop("patience", None)
    counted = {name: mixed[name] for name in COUNTS if mixed.get(name) is not None}
    sentences = [*([text.strip()] if text.strip() else []), *manners]
    sentences += [_SENTENCES[name].format(value) for name, value in counted.items()]
    return Persona(" ".join(sentences), gives_up_after, counted)


def parse_persona(value: Any, key: str) -> Persona:
    """Parse `{"persona": [names], …}` with the arguments of `persona`. Raises ValueError."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{key}: expected a text or persona(…), found {type(value).__name__}")
    options = known_keys(value, ("persona", "text", "patience", *COUNTS), key)
    named = options.pop("persona", ())
    names = [named] if isinstance(named, str) else listed(named, f"{key}.persona", "a list of names")
    with errors_as(ValueError, f"{key}: "):
        return persona(*(nonempty_text(name, f"{key}.persona") for name in names), **options)


CHECK_PARAMETERS = ("conversation", "state")


OF_MODEL = "a fault of the agent's model; write it in `model_faults`"


def parse_profile(value: Any, key: str) -> str | Persona:
    """Parse a text, a `Persona`, or a dict with the arguments of `persona`. Raises ValueError."""
    if isinstance(value, str | Persona):
        return value

    return parse_persona(value, key)


def parse_state(value: Any, key: str = "state") -> Mapping[str, Any] | None:
    """Return a copy of the mocks' initial state; None if there is none."""
    if value is None or isinstance(value, BuiltinState):
        return value
    if not has_text_keys(value):
        raise ValueError(f"{key}: expected a dict with texts as keys, found {kind_of(value)}")
    data = builtin_bytes(dict(value))
    return _copied_state(value, key) if data is None else _cached_state(data)


@lru_cache(maxsize=8)
def _cached_state(data: bytes) -> BuiltinState:
    return BuiltinState(data)


def _copied_state(state: Mapping[str, Any], key: str) -> dict[str, Any]:
    if (word := word_in_value(state)) is not None:
        value_text = brief(word)
        raise ValueError(f"{key}: {value_text} is a matcher for expectations, not for the mocks' state")
    memo: dict[int, Any] = {}  # shared, so that objects used by two keys are copied once
    copy: dict[str, Any] = {}
    for name, value in state.items():
        try:
            copy[name] = deepcopy(value, memo)
        except Exception as error:  # noqa: BLE001 - users' copy methods may raise anything
            raise ValueError(
                f"{key}[{brief(name)}]: cannot be copied, and each conversation has a copy of its own "
                f'({brief(error)}); let a mock make it: ctx.state.setdefault("name", …)'
            ) from None
    return copy


def parse_check(value: Any, key: str = "check") -> Any:
    """Return the function that checks a conversation; None if there is none."""
    if value is None:
        return None
    is_function = callable(value) and not isinstance(value, type)
    checked(value, key, "a function of the conversation and the state", is_function)
    with errors_as(ValueError, f"{key}: the function cannot be called: ", TypeError):
        accepted_values(value, CHECK_PARAMETERS)
    from agentest.scenarios.function_source import find_check_flaw

    if flaw := find_check_flaw(value):
        raise ValueError(f"{key}: {flaw}")
    return value


def parse_tools(options: Mapping[str, Any]) -> dict[str, Mock]:
    """Return the validated mocks under `tools` or `mocks.tools`. Raises ValueError."""
    if "mocks" in options and "tools" in options:
        raise ValueError("tools: is given twice, as `tools` and as `mocks`")
    if "mocks" in options:
        tools = known_keys(options["mocks"], ("tools",), "mocks").get("tools", {})
    else:
        tools = options.get("tools", {})
    return {} if tools == "simulate" else _mocks(tools, "tools")


def parse_user_tools(tools: Any, *, scripted: bool, key: str = "user_tools") -> dict[str, Mock]:
    """Return the simulated user's validated tools; empty if there are none. Raises ValueError."""
    if tools is None:
        return {}
    if scripted:
        raise ValueError(f"{key}: is for a simulated user; a script calls no tools, so leave it out")
    return _mocks(tools, key)


def _mocks(tools: Any, key: str) -> dict[str, Mock]:
    if not isinstance(tools, Mapping):
        first = next(iter(as_list(tools)), None)
        name = getattr(first, "__name__", first if isinstance(first, str) else "find_order")
        example = f"write {{{name!r}: {name if callable(first) else {'status': 'sent'}}}}"
        raise ValueError(f"{key}: expected a dict from tool name to mock, found {kind_of(tools)}; {example}")
    collector = ProblemCollector()
    check = _checked_data_mock if isinstance(tools, DataTools) else _checked_mock
    mocks = {
        collector.parse(nonempty_text, name, key): collector.parse(check, mock, f"{key}[{brief(name)}]")
        for name, mock in tools.items()
    }
    collector.check()
    return mocks


class DataTools(dict[str, Any]):
    """Tools of a data file, whose mocks may be written as one of `MOCK_FORMS`."""


def _checked_data_mock(mock: Any, key: str) -> Mock:
    return _checked_mock(_mock_of_data(mock, key), key)


def _mock_of_data(value: Any, key: str) -> Any:
    form = mock_form_of(value)
    if form is None:
        return value
    ((word, inner),) = value.items()
    return MOCK_FORMS[form][1](inner, f"{key}.{word}")


def mock_form_of(value: Any) -> str | None:
    """Return the word of the form that a value has in a data file; None if it stands for itself."""
    if not (isinstance(value, Mapping) and len(value) == 1):
        return None
    ((word, inner),) = value.items()
    form = snake_case(word) if isinstance(word, str) else ""
    return form if form in MOCK_FORMS and isinstance(inner, MOCK_FORMS[form][0]) else None


def _sequence_of_data(steps: list[Any], key: str) -> MockSequence:
    if not steps:
        raise ValueError(f"{key}: is empty; give at least one answer")
    made = tuple(_mock_of_data(step, f"{key}[{n}]") for n, step in enumerate(steps))
    if any(isinstance(step, MockSequence) for step in made):
        raise ValueError(f"{key}: a sequence cannot be in another one")
    return MockSequence(made)


def _http_response_of_data(value: Any, key: str) -> HttpResponse:
    options = known_keys(value, ("status", "body", "headers"), key)
    if "status" not in options:
        raise ValueError(f"{key}.status: is missing")
    headers = options.get("headers")
    checked(headers, f"{key}.headers", "a dict of texts", headers is None or has_text_keys(headers))
    with errors_as(ValueError, f"{key}: "):
        return HttpResponse(options["status"], options.get("body"), headers=headers)


MOCK_FORMS: Mapping[str, tuple[type, Callable[[Any, str], Any]]] = {
    "sequence": (list, _sequence_of_data),
    "error": (str, lambda message, _: ToolError(message)),
    "http_response": (dict, _http_response_of_data),
    # A value that is not changed, although it has one of these forms.
    "exactly": (object, lambda value, _: value),
}
"""Word → the type of its value, and its parser: what a dict with only this key stands for in a data file."""


def _checked_mock(mock: Any, key: str) -> Mock:
    if isinstance(mock, ChangedAnswers):
        if kinds := [each.kind for each in mock.changes if getattr(each, "kind", "error") not in TOOL_FAULTS]:
            raise ValueError(f"{key}: {kinds[0]!r} is {OF_MODEL}")
        return ChangedAnswers(_checked_mock(mock.mock, key), mock.changes)
    if isinstance(mock, Fault):
        raise ValueError(f"{key}: is a fault without an answer; write fault({mock.kind!r}, …).then(answer)")
    if isinstance(mock, MockSequence):
        return MockSequence(
            tuple(_checked_step(step, f"{key}, step {i}") for i, step in enumerate(mock.steps))
        )
    if isinstance(mock, type) and issubclass(mock, BaseException):
        raise ValueError(f'{key}: is a class; write {mock.__name__}("…") to make the tool fail')
    return _checked_step(mock, key)


def _checked_step(step: Any, key: str) -> Any:
    if isinstance(step, HttpResponse):
        _checked_step(step.body, key)
        return step
    if isinstance(step, BaseException) or (isinstance(step, type) and issubclass(step, BaseException)):
        return step
    if callable(step):
        problem = f"{key}: the function cannot be called with a tool's arguments: "
        with errors_as(ValueError, problem, (TypeError, ValueError)):
            return bind(step)
    if (word := word_in_value(step)) is not None:
        raise ValueError(f"{key}: {brief(word)} is a matcher for expectations, not for answers of mocks")
    with errors_as(ValueError, f"{key}: the answer is not JSON-serialisable: ", NotJson):
        json_text(step)
    return step
