"""Planner, executor and reviewer in google-adk: deterministic stages that share session state."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any

from google.adk.agents import BaseAgent, SequentialAgent
from google.adk.events import Event, EventActions
from google.genai.types import Content, Part


def planned(state: Mapping[str, Any], task: str) -> Any:
    return f"plan for {state.get('customer', 'somebody')}: {task}"


def executed(state: Mapping[str, Any], _: str) -> Any:
    return [{"step": "design", "of": state["project_plan"]}, {"step": "build", "done": None}]


def reviewed(state: Mapping[str, Any], _: str) -> Any:
    return {"approved": len(state["execution_plan"]) == 2, "rounds": state.get("rounds", 0) + 1}


STEPS = {"project_plan": planned, "execution_plan": executed, "review_result": reviewed}


class Stage(BaseAgent):
    """Stores its result under `key`, and reports it."""

    key: str

    async def _run_async_impl(self, ctx: Any) -> AsyncGenerator[Event, None]:
        task = ctx.user_content.parts[0].text
        result = STEPS[self.key](ctx.session.state, task)
        delta = {self.key: result, "temp:note": "for this invocation"}
        if self.key == "review_result":
            delta["rounds"] = result["rounds"]
        yield Event(
            author=self.name,
            invocation_id=ctx.invocation_id,
            content=Content(role="model", parts=[Part(text=f"{self.key} is ready")]),
            actions=EventActions(state_delta=delta),
        )


root_agent = SequentialAgent(
    name="pipeline",
    sub_agents=[
        Stage(name="planner", key="project_plan"),
        Stage(name="executor", key="execution_plan"),
        Stage(name="reviewer", key="review_result"),
    ],
)
