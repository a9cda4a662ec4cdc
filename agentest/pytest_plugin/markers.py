"""Names in pytest's form: of markers, which a tag becomes, and of items."""

from __future__ import annotations

import re

import pytest

from agentest.support.terminal import clean

_PYTEST = ("skip", "skipif", "xfail", "parametrize", "usefixtures", "filterwarnings", "tryfirst", "trylast")
_PLUGINS = ("anyio", "asyncio", "dependency", "django_db", "flaky", "order", "timeout", "trio", "xdist_group")
_WORDS = ("and", "or", "not", "True", "False", "None")
_MEANINGFUL = frozenset({*_PYTEST, *_PLUGINS, *_WORDS})
"""Names that would make pytest do something, or that `-m` cannot say."""


def marker_name(tag: str) -> str:
    """The marker of a tag: what `-m` cannot read becomes `_`; what pytest would act on begins with `tag_`."""
    name = re.sub(r"[^\w.+/-]", "_", tag)
    return f"tag_{name}" if name in _MEANINGFUL or name[:1] in ("", "_") else name


def mark(item: pytest.Item, tag: str) -> None:
    """Mark an item with a tag, under a marker that `--strict-markers` knows."""
    name = marker_name(tag)
    if not any(re.split("[:(]", line)[0].strip() == name for line in item.config.getini("markers")):
        item.config.addinivalue_line("markers", f"{name}: tag of scenarios")
    item.add_marker(getattr(pytest.mark, name))


def item_name(scenario: str, agent: str) -> str:
    """The name of an item: the scenario's, without the `::` that divides node ids, then the agent's."""
    return f"{_in_a_row(scenario)}[{_in_a_row(agent)}]" if agent else _in_a_row(scenario)


def _in_a_row(name: str) -> str:
    row = " ".join(clean(name).split())
    while "::" in row:
        row = row.replace("::", ": :")
    return row
