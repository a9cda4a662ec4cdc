"""The layout in results.json of what an exploration found. Imported only by runs that explored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentest.domain.results.exploration import Explored, ExploredPart, Finding
from agentest.store.codec import CODECS
from agentest.store.dataclass_codec import Codecs, Layout
from agentest.support.json_text import Json
from agentest.support.lazy_dataclasses import replace

_CHANGE_KEYS = {
    ExploredPart.FAULTS: "fault",
    ExploredPart.INJECTIONS: "injection",
    ExploredPart.MUTATIONS: "mutation",
    ExploredPart.ATTACKS: "attack",
}


def exploration_keys(explored: Explored) -> Json:
    """Return the keys `findings` and `explored`."""
    return {"findings": list(map(_CODECS.write, explored.findings)), "explored": _CODECS.write(explored)}


def read_exploration(document: Mapping[str, Any]) -> Explored:
    """Decode the keys `findings` and `explored`."""
    findings = (_CODECS.read(Finding, each) for each in document.get("findings", ()))
    return replace(_CODECS.read(Explored, document["explored"]), findings=tuple(findings))


def _change_key(finding: Finding) -> Json:
    key = _CHANGE_KEYS.get(finding.part)
    return {key: finding.change} if key else {}


def _with_change(finding: Finding, data: Mapping[str, Any]) -> Finding:
    return replace(finding, change=data.get(_CHANGE_KEYS.get(finding.part, ""), ""))


_CODECS = Codecs(
    {
        Explored: Layout(
            left_out=("findings", "fail_on"),
            always=("tries", "by_part", "not_tried", "untried", "signatures", "conversations", "cost"),
            digits={"cost": 6},
        ),
        Finding: Layout(
            left_out=("change",),
            required=("rate", "minimal", "file", "transcript", "hint", "tags", "tries"),
            always=("conversations_to_find",),
            derived=_change_key,
            completed=_with_change,
        ),
    },
    CODECS,
)
