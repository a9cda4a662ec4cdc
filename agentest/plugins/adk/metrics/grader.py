"""The base class of graders of evaluation sets, and the facts about an agent that judges get."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

from agentest.config.models import RequestedModel
from agentest.domain.metrics import ADK_METRICS, MetricLevel
from agentest.domain.transcript import Conversation
from agentest.judging.grader import GraderResult
from agentest.models.port import CallKey, Model
from agentest.plugins.adk.formats.criteria import MetricCriterion
from agentest.plugins.adk.formats.eval_set import EvalCase, Invocation
from agentest.support.json_text import encode_on_one_line
from agentest.support.lazy_dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentFacts:
    """What judges know about an agent; "" if unknown."""

    instructions: str = ""
    tools: str = ""  # the declarations of its tools, one per line
    mock_server_tools: str = ""  # descriptions of its tools from other sources, for cases that recorded none
    unseen: str = ""
    """Why its tool calls are invisible unless its replies report them; "" if they are visible."""
    date: str = ""  # the configured date of the conversation, in ISO 8601


NOTHING_KNOWN = AgentFacts()


def facts_of(
    case: EvalCase, known: AgentFacts = NOTHING_KNOWN, redact: Callable[[str], str] = str
) -> AgentFacts:
    """Collect facts from the agent's settings, else from the case's recorded `app_details`.

    Args:
        redact: removes secrets from what the case recorded. `known` contains none.
    """
    recorded = [turn.app_details for turn in case.conversation or () if turn.app_details]
    agents = [agent for details in recorded for agent in details.agent_details.values()]
    # Every invocation repeats its agents' instructions and tools.
    instructions = dict.fromkeys(
        f"Agent {agent.name}:\n{agent.instructions}" for agent in agents if agent.instructions.strip()
    )
    declared = dict.fromkeys(tool for agent in agents for tool in _tools(agent.tool_declarations))
    return AgentFacts(
        instructions=known.instructions or redact("\n\n".join(instructions)),
        tools=known.tools or redact("\n".join(declared)) or known.mock_server_tools,
        unseen=known.unseen,
    )


def _tools(declarations: Iterable[Any]) -> Iterator[str]:
    for declaration in declarations:
        functions = None
        if isinstance(declaration, Mapping):
            functions = declaration.get("function_declarations", declaration.get("functionDeclarations"))
        for tool in functions if isinstance(functions, list) else [declaration]:
            yield encode_on_one_line(tool)


@dataclass(frozen=True, slots=True)
class CriterionGrader(ABC):
    """Grade the conversations of a case by one criterion."""

    case: EvalCase
    criterion: MetricCriterion
    facts: AgentFacts = field(default=NOTHING_KNOWN, kw_only=True)  # what judges know about the agent

    @property
    def name(self) -> str:
        return self.criterion.metric

    @property
    def judge(self) -> RequestedModel | None:
        return self.criterion.judge if uses_judge(self.name) else None

    @property
    def rubrics(self) -> tuple[str, ...]:
        rubrics = self.criterion.rubrics or ()
        return tuple(f"{each.rubric_id}: {each.rubric_content.text_property}" for each in rubrics)

    @abstractmethod
    async def grade(self, conversation: Conversation, model: Model | None, key: CallKey) -> GraderResult:
        """Return the scores, as `agentest.judging.grader.Grader` specifies."""

    def most_calls(self, turns: int) -> int:
        """Return the maximum number of judge calls: one per turn, or conversation, and sample."""
        if not uses_judge(self.name):
            return 0  # it is unknown whether a custom evaluator calls a model
        whole = ADK_METRICS[self.name].level is MetricLevel.CONVERSATION
        return (1 if whole else turns) * samples_of(self.criterion)


def samples_of(criterion: MetricCriterion) -> int:
    """Return the number of samples per question."""
    return criterion.num_samples or ADK_METRICS[criterion.metric].samples


def uses_judge(metric: str) -> bool:
    """Return True if a built-in metric uses a judge. Custom metrics call their own models."""
    return metric in ADK_METRICS and ADK_METRICS[metric].judged


def invocation_at(case: EvalCase, turn_index: int) -> Invocation | None:
    """Return the case's invocation of a turn; None if the case does not write it out."""
    written = case.conversation or ()
    return written[turn_index] if turn_index < len(written) else None


def majority(votes: Sequence[bool]) -> bool:
    """Return True if more than half of the votes are yes: a tie is no."""
    return 2 * sum(votes) > len(votes)
