"""Personas of simulated users, as traits that can be mixed and counted in transcripts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentest.scenarios.model import Persona
from agentest.scenarios.parser import known_keys, listed, nonempty_text, positive
from agentest.support.errors import errors_as
from agentest.support.text import did_you_mean

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
