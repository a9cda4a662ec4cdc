"""One way to turn what users hand over into JSON text, and to show what is no JSON."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from pydantic import BaseModel


class NotJson(ValueError):
    """The value cannot be written as JSON; the message says why."""


def json_text(value: Any) -> str:
    """The value as JSON. Dataclasses and pydantic models count as objects. Raises NotJson."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, default=_as_object)
    except RecursionError:
        raise NotJson("the value is nested too deeply, or contains itself") from None
    except (TypeError, ValueError) as error:
        raise NotJson(str(error)) from None


def _as_object(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    raise TypeError(f"a {type(value).__name__} is not JSON-serialisable")


def safe_repr(value: Any) -> str:
    """The value's repr; its type's name where it has none or is nested too deeply for one."""
    try:
        return repr(value)
    except Exception:  # noqa: BLE001 - the value is a stranger's, and this only tells about a result
        return f"<{type(value).__name__}>"
