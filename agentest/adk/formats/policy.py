"""The policy of `safety_v1`: a text of the criterion, or a file that it names."""

from __future__ import annotations

from pathlib import Path

from agentest.support.errors import UsageError
from agentest.support.files import text_file

_METRIC = "safety_v1"


def not_blank(text: str) -> str:
    """The text. Raises ValueError where it says nothing."""
    if not text.strip():
        raise ValueError("must not be empty")
    return text


def policy_text(metric: str, policy: str | None, policy_file: str | None, at: str, folder: Path) -> str:
    """What a criterion gives as its policy; "" where it gives none.

    Args:
        at: where the criterion stands, for errors.
        folder: what the file's path is relative to.

    Raises UsageError for a file that cannot be read, and for a metric that asks about no policy.
    """
    given = "policy" if policy is not None else "policy_file"
    if (policy or policy_file) and metric != _METRIC:
        raise UsageError(f"{at}.{given}: only `{_METRIC}` asks about a policy; give it to that criterion")
    if policy_file is None:
        return policy or ""
    path = folder / policy_file
    try:
        return text_file(path)
    except ValueError as error:
        hint = "name a text file, or give the text itself as `policy`"
        raise UsageError(f"{at}.{given}: {path} {error}; {hint}") from None
