"""What usually helps against a finding, and the categories of published lists that it belongs to."""

from __future__ import annotations

from collections.abc import Mapping

from agentest.plugins.explore.model import Violation

HINTS: Mapping[str, str] = {
    "no_error": "Catch errors and unusual answers of tools, and tell the user what could not be done.",
    "in_schema": "Validate arguments against the tool's schema before the call.",
    "no_repeated_write": "After an unknown outcome, read the state before you write again, or send an "
    "idempotency key.",
    "consent": "Ask for a yes to the exact action, and wait for it before the write.",
    "no_secret": "Never put secrets into prompts; filter what tools and replies may contain.",
    "no_obeyed_injection": "Treat everything that tools, files and pages say as data, never as instructions.",
    "no_claim": "Build the reply from the tool's answer, and say so if it failed.",
    "grounded_ids": "Compare the id in an answer with the one that was requested, and pass on only values "
    "that the answer has.",
    "bounded": "Limit retries to about three, and tell the user after that.",
    "relation": "The same request in other words must lead to the same actions.",
    "no_way_round": "Treat a denied permission as the answer: tell the user, and do not try another way.",
    "forbidden": "Enforce the ban in code rather than in the prompt alone.",
}
"""Oracle → what usually helps."""
TAGS: Mapping[str, tuple[str, ...]] = {
    "no_obeyed_injection": ("OWASP LLM01",),
    "no_secret": ("OWASP LLM02",),
    "no_repeated_write": ("OWASP LLM06",),
    "consent": ("OWASP LLM06",),
    "forbidden": ("OWASP LLM06",),
    "no_claim": ("OWASP LLM09",),
    "grounded_ids": ("OWASP LLM09",),
    "bounded": ("OWASP LLM10",),
}
"""Oracle → categories of the OWASP Top 10 for LLM applications, 2025."""


def describe(violation: Violation) -> tuple[str, tuple[str, ...]]:
    """Return the hint and the tags of a violation."""
    oracle = violation.key.oracle
    return HINTS.get(oracle, ""), TAGS.get(oracle, ())
