"""A section of a criteria file, checked: what is wrong is said with file and key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from agentest.support.errors import UsageError
from agentest.support.json_text import safe_repr
from agentest.support.spelling import snake_case

_MESSAGES = {
    "missing": "is missing",
    "string_too_short": "must not be empty",
    "extra_forbidden": "is not a key that is known here",
    "model_type": "must be an object",
    "dict_type": "must be an object",
    "dataclass_type": "must be an object",
    "tuple_type": "must be a list",
}
_S = TypeVar("_S", bound=BaseModel)


def checked(section: type[_S], data: object, source: str, *at: str) -> _S:
    """The data as a section. Raises UsageError, which says where in the file the first mistake is."""
    try:
        return section.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
    names = (snake_case(part) if isinstance(part, str) else str(part) for part in first["loc"])
    path = ".".join([*at, *names])
    message = _MESSAGES.get(first["type"]) or first["msg"].replace("Input should", "must")
    value = _shortened(safe_repr(first["input"]))
    raise UsageError(
        f"{source}: {path + ': ' if path else ''}{message.removeprefix('Value error, ')}; found {value}"
    )


def _shortened(text: str) -> str:
    return text if len(text) <= 80 else text[:79] + "…"


def check_no_data_form(data: object, source: str) -> None:
    """Raises UsageError for criteria as ADK for TypeScript has them: their place is beside the cases."""
    keys = [key for key in ("metrics", "thresholds", "rubric") if isinstance(data, Mapping) and key in data]
    if keys:
        named = ", ".join(f"`{key}`" for key in keys)
        raise UsageError(
            f"{source}: {named} stand in the file of the cases, beside its `data`; of a file of criteria, "
            'write {"criteria": {"safety_v1": 1.0, …}}, with `rubrics` in the criterion of a rubric metric'
        )
