"""How a run is prepared again in another process, with the project's files in a folder there.

They are what `scale.ray.life.Recipe` asks for; they can be pickled.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from agentest.runner.prepare import Prepared, Request
from agentest.support.paths import moved

if TYPE_CHECKING:  # imported for evaluation sets alone
    from agentest.adk.planning import EvalRequest


@dataclass(frozen=True, slots=True)
class RunRecipe:
    """Of scenarios."""

    request: Request

    def prepared(self, root: Path) -> Prepared:
        from agentest.runner.prepare import prepare

        return prepare(_moved(self.request, root))


@dataclass(frozen=True, slots=True)
class EvalRecipe:
    """Of evaluation sets."""

    evaluation: EvalRequest

    def prepared(self, root: Path) -> Prepared:
        from agentest.adk.planning import prepare_eval

        asked, old = self.evaluation, self.evaluation.request.root
        criteria, session, mocks = (
            path and moved(path, old, root) for path in (asked.criteria, asked.initial_session, asked.mocks)
        )
        request = _moved(asked.request, root)
        there = replace(asked, request=request, criteria=criteria, initial_session=session, mocks=mocks)
        return prepare_eval(there)


def _moved(request: Request, root: Path) -> Request:
    """The request in another folder. Reports, and comparisons, are made elsewhere."""
    paths = tuple(replace(each, path=moved(each.path, request.root, root)) for each in request.options.paths)
    return replace(
        request,
        root=root,
        here=root,
        config=request.config and moved(request.config, request.root, root),
        options=replace(request.options, paths=paths),
        reporters=(),
        baseline=None,
    )
