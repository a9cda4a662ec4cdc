"""Accessibility checks of a page with axe."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

THEMES = ("light", "dark")
_GRAVE = ("serious", "critical")
_RUN = """async (limit) => {
  const found = await axe.run(document, {resultTypes: ["violations"], ...limit});
  return found.violations.map(({id, impact, help, nodes}) => ({id, impact, help,
    nodes: nodes.map((each) => `${each.target}: ${each.failureSummary}; ${each.html.slice(0, 200)}`)}));
}"""


def no_finding(page: Any, themes: tuple[str, ...] = THEMES) -> None:
    """Fail if axe has a serious or critical finding in any theme; the page keeps its theme.

    Colors are checked in each theme, everything else once.
    """
    _inject(page)
    before = page.evaluate("document.documentElement.dataset.theme || ''")
    found = _findings(page, themes[0], {}) + [
        each
        for theme in themes[1:]
        for each in _findings(page, theme, {"runOnly": ["color-contrast", "link-in-text-block"]})
    ]
    page.evaluate("(theme) => { document.documentElement.dataset.theme = theme; }", before)
    assert not found, "\n".join(found)


def _findings(page: Any, theme: str, limit: dict[str, Any]) -> list[str]:
    page.evaluate("(theme) => { document.documentElement.dataset.theme = theme; }", theme)
    return [
        f"{theme}: {each['impact']} {each['id']}, {each['help']}: {json.dumps(each['nodes'], indent=2)}"
        for each in page.evaluate(_RUN, limit)
        if each["impact"] in _GRAVE
    ]


def _inject(page: Any) -> None:
    if not page.evaluate("typeof axe !== 'undefined'"):
        page.evaluate(_script())


@cache
def _script() -> str:
    from axe_playwright_python.base import AXE_SCRIPT

    return str(AXE_SCRIPT)
