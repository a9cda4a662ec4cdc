"""What all graders of an evaluation set's cases have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from agentest.adk.formats.criteria import Criterion
from agentest.adk.formats.eval_set import AgentDetails, EvalCase, Rubric
from agentest.config.models import ModelWish
from agentest.domain.metrics import ADK_METRICS
from agentest.domain.transcript import Conversation
from agentest.judging.grader import Graded, Grader
from agentest.models.port import CallKey, Model
from agentest.support.json_text import on_one_line


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentFacts:
    """What judges are told of an agent; "" stands for what is not known."""

    instructions: str = ""
    tools: str = ""
    """The declarations of its tools, a line each."""
    tools_beside: str = ""
    """What is known of its tools otherwise: for cases that have recorded none."""
    unseen: str = ""
    """Why its tool calls cannot be seen, unless its answers tell of them; "": they can."""
    date: str = ""
    """When the conversation takes place, where that is configured: ISO 8601."""


NOTHING_KNOWN = AgentFacts()


def facts_of(
    case: EvalCase, own: AgentFacts = NOTHING_KNOWN, redact: Callable[[str], str] = str
) -> AgentFacts:
    """What the agent's own settings say, else what the case recorded of it (`app_details`).

    Args:
        redact: takes secrets out of what the case recorded; `own` holds none.
    """
    agents = list(_agents(case))
    declared = (tool for agent in agents for tool in _tools(agent.tool_declarations))
    return AgentFacts(
        instructions=own.instructions or redact(_joined("\n\n", map(_told, agents))),
        tools=own.tools or redact(_joined("\n", declared)) or own.tools_beside,
        unseen=own.unseen,
    )


def _agents(case: EvalCase) -> Iterator[AgentDetails]:
    for invocation in case.conversation or ():
        if invocation.app_details:
            yield from invocation.app_details.agent_details.values()


def _told(agent: AgentDetails) -> str:
    return f"Agent {agent.name}:\n{agent.instructions}" if agent.instructions.strip() else ""


def _tools(declarations: Iterable[Any]) -> Iterator[str]:
    """Each tool as JSON. ADK keeps functions in groups; other tools stand for themselves."""
    for declaration in declarations:
        functions = _functions(declaration)
        for tool in [declaration] if functions is None else functions:
            yield on_one_line(tool)


def _functions(declaration: Any) -> list[Any] | None:
    if not isinstance(declaration, Mapping):
        return None
    found = declaration.get("function_declarations", declaration.get("functionDeclarations"))
    return found if isinstance(found, list) else None


def _joined(separator: str, texts: Iterable[str]) -> str:
    """The texts, each once: every invocation of a case repeats what its agents were told."""
    return separator.join(dict.fromkeys(text for text in texts if text))


@dataclass(frozen=True, slots=True)
class CriterionGrader(ABC):
    """Grades a case's conversations by one criterion."""

    case: EvalCase
    criterion: Criterion
    facts: AgentFacts = field(default=NOTHING_KNOWN, kw_only=True)
    """What judges are told of the agent."""

    @property
    def name(self) -> str:
        return self.criterion.metric

    @property
    def judge(self) -> ModelWish | None:
        return self.criterion.judge if asks_a_judge(self.name) else None

    @abstractmethod
    async def grade(self, conversation: Conversation, model: Model | None, key: CallKey) -> Graded:
        """The scores, as `evaluate.grading.Grader` says."""

    def most_calls(self, turns: int) -> int:
        """A question for every turn and sample, where the metric is judged at all."""
        if not asks_a_judge(self.name):
            return 0  # whether an evaluator of the user's own asks anybody is not known
        return turns * (self.criterion.num_samples or ADK_METRICS[self.name].samples)


def asks_a_judge(metric: str) -> bool:
    """Whether a metric of ADK's or of ours asks a judge; one of the user's own has ways of its own."""
    return metric in ADK_METRICS and ADK_METRICS[metric].judged


def rubric_lines(graders: Iterable[Grader]) -> list[str]:
    """The rubrics that the criteria give to these graders, under the metrics that share them."""
    metrics: dict[tuple[Rubric, ...], dict[str, None]] = {}
    for grader in graders:
        if isinstance(grader, CriterionGrader) and grader.criterion.rubrics:
            metrics.setdefault(grader.criterion.rubrics, {})[grader.name] = None
    return [line for rubrics, names in metrics.items() for line in _lines(rubrics, names)]


def _lines(rubrics: Iterable[Rubric], metrics: Iterable[str]) -> list[str]:
    texts = (f"  {one.rubric_id}: {one.rubric_content.text_property}" for one in rubrics)
    return [f"rubrics of {', '.join(metrics)}", *texts]
