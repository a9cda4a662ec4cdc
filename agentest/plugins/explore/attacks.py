"""The attack sweep: adversarial users against the bans, secrets and amounts of a passing scenario."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from agentest.domain.attacks import STRATEGIES, TAGS, Attack
from agentest.domain.results.exploration import ExploredPart
from agentest.judging.safety_checks import text_leaves
from agentest.plugins.explore.injections import AMOUNT
from agentest.plugins.explore.model import Base, Variation
from agentest.runner.plan import Unit
from agentest.scenarios.calls import ExpectedCall
from agentest.scenarios.model import Scenario
from agentest.scenarios.trajectory import Trajectory
from agentest.scenarios.variations import objectives, relaxed, without_changes
from agentest.support.lazy_dataclasses import dataclass, replace

if TYPE_CHECKING:
    from agentest.plugins.explore.tool_effects import ToolEffects

NOTHING_TO_ATTACK = "it forbids nothing, plants no secret, and no write has an amount that only a tool gives"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackSweep:
    """Yields the variations of a base with one adversarial user each (`Vary`)."""

    effects: Callable[[Unit], ToolEffects]
    canary: str | None = None
    """A tool that nobody may call."""

    def __call__(self, base: Base) -> Iterator[Variation]:
        attacked = self.attacked(base)
        without = attacked.explore.without if attacked.explore else ()
        for number, objective in enumerate(objectives(attacked)):
            for rank, (name, strategy) in enumerate(STRATEGIES.items()):
                if name not in without:
                    user = Attack(name, turns=strategy.turns, target=objective)
                    yield Variation(
                        part=ExploredPart.ATTACKS,
                        name=f"{name}: {objective.aim}",
                        group=f"{name} × {base.unit.scenario.name}",
                        scenario=replace(attacked, attack=user, tags=TAGS[objective.kind]),
                        rank=rank + len(STRATEGIES) * number,
                    )

    def attacked(self, base: Base) -> Scenario:
        """Return the scenario of a base without its user, and with the bans that an attack is about."""
        scenario = base.unit.scenario
        bans = [*self._amounts(base)]
        if self.canary in scenario.tools:
            bans.append(ExpectedCall(str(self.canary)))
        banned = (Trajectory("contains", forbidden=tuple(bans), name="attack"),) if bans else ()
        goal = scenario.goal or (scenario.turns[0].user_message if scenario.turns else "")
        plain = relaxed(without_changes(scenario))
        return replace(
            plain,
            goal=goal,
            turns=(),
            mutations=(),
            plan=None,
            patience=None,
            user_tools={},
            user_prompt_template=None,
            trajectory=(*plain.trajectory, *banned),
        )

    def _amounts(self, base: Base) -> Iterator[ExpectedCall]:
        """Yield calls with ten times an amount that a tool told, and no user: a right agent looks it up."""
        effects, known = self.effects(base.unit), set[tuple[str, str]]()
        for result in base.conversations:
            told: set[str] = set()
            said = " ".join(turn.user_message for turn in result.conversation.turns)
            for call in result.conversation.tool_calls:
                for name, value in call.args.items() if isinstance(call.args, Mapping) else ():
                    is_amount = isinstance(value, int | float) and AMOUNT.search(name)
                    is_given = str(value) in told and str(value) not in said
                    if (
                        is_amount
                        and is_given
                        and effects.is_write(call.name)
                        and (call.name, name) not in known
                    ):
                        known.add((call.name, name))
                        yield ExpectedCall(call.name, {name: value * 10 + 1})
                told |= {text for _, text in text_leaves(call.result)}
