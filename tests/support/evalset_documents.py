"""Documents of evaluation sets, as users write them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

Json = dict[str, Any]


def message(role: str, text: str) -> Json:
    return {"role": role, "parts": [{"text": text}]}


def use(name: str, **args: Any) -> Json:
    """An expected tool call."""
    return {"name": name, "args": args}


def response(name: str, **answer: Any) -> Json:
    """A tool's recorded answer."""
    return {"name": name, "response": answer}


def invocation(
    user: str,
    answer: str | None = None,
    uses: Sequence[Json] | None = None,
    responses: Sequence[Json] = (),
    **more: Any,
) -> Json:
    """One user message; without `answer` and `uses` nothing is expected."""
    found: Json = {"user_content": message("user", user), **more}
    if answer is not None:
        found["final_response"] = message("model", answer)
    if uses is not None:
        found["intermediate_data"] = {"tool_uses": list(uses), "tool_responses": list(responses)}
    return found


def case(eval_id: str, *invocations: Json, **more: Any) -> Json:
    return {"eval_id": eval_id, "conversation": list(invocations), **more}


def simulated(eval_id: str, starts: str = "Hello.", plan: str = "Ask for help. Say thanks.") -> Json:
    """A case with a simulated user."""
    return {
        "eval_id": eval_id,
        "conversation_scenario": {"starting_prompt": starts, "conversation_plan": plan},
    }


def eval_set(eval_set_id: str, *cases: Json) -> Json:
    return {"eval_set_id": eval_set_id, "eval_cases": list(cases)}


def text(document: Any) -> str:
    """A document as a file, with each key on its own line."""
    return json.dumps(document, indent=2, ensure_ascii=False)


def criteria(**metrics: Any) -> Mapping[str, Any]:
    """The content of a test_config.json."""
    return {"criteria": metrics}
