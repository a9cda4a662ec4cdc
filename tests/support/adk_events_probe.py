"""Random events of one run, and what google-adk's evaluation reads from them. Run by google-adk's Python.

    python adk_events_probe.py COUNT SEED

Writes one JSON object a line: `events` as the server sends them, `text`, `calls` and `remarks`. No thoughts
and no errors among the events: google-adk takes those for replies, and we do not. It also counts the text of
a final response with calls (of long-running tools) twice, as reply and as remark, which is left out here.
"""

from __future__ import annotations

import json
import random
import sys
from typing import Any

from google.adk.evaluation.eval_case import get_all_tool_calls
from google.adk.evaluation.evaluation_generator import EvaluationGenerator
from google.adk.events import Event, EventActions
from google.genai import types


def part(rng: random.Random) -> types.Part:
    name, id = rng.choice(["find", "book"]), rng.choice([None, "1", "2"])
    return rng.choice(
        [
            types.Part(text=rng.choice(["Hello.", "", "Let me look.", "ü"])),
            types.Part(text="Free on Tuesday."),
            types.Part(
                function_call=types.FunctionCall(id=id, name=name, args=rng.choice([None, {}, {"n": 1}]))
            ),
            types.Part(function_response=types.FunctionResponse(id=id, name=name, response={"n": 1})),
            types.Part(inline_data=types.Blob(data=b"x", mime_type="image/png")),
            types.Part(code_execution_result=types.CodeExecutionResult(output="1")),
        ]
    )


def event(rng: random.Random) -> Event:
    parts = [part(rng) for _ in range(rng.choice([0, 1, 1, 1, 2, 3]))]
    return Event(
        invocation_id="e-1",
        author=rng.choice(["salon", "salon", "helper", "user", "User"]),
        content=rng.choice([types.Content(role="model", parts=parts)] * 5 + [None]),
        long_running_tool_ids=rng.choice([None, set(), set(), {"1"}]),
        actions=EventActions(skip_summarization=rng.choice([None, None, None, True])),
    )


def reading(events: list[Event]) -> dict[str, Any]:
    (invocation,) = EvaluationGenerator.convert_events_to_eval_invocations(events)
    data = invocation.intermediate_data
    final = invocation.final_response
    contents = [(e.author, texts(e.content)) for e in data.invocation_events if e.content is not final]
    return {
        "events": [e.model_dump(exclude_none=True, by_alias=True, mode="json") for e in events],
        "text": texts(final),
        "calls": [[c.name, c.args] for c in get_all_tool_calls(data)],
        "remarks": [[author, said] for author, said in contents if said],
    }


def texts(content: types.Content | None) -> str:
    return "\n".join(p.text for p in content.parts or [] if p.text) if content else ""


if __name__ == "__main__":
    rng = random.Random(sys.argv[2])
    for _ in range(int(sys.argv[1])):
        print(json.dumps(reading([event(rng) for _ in range(rng.choice([1, 2, 3, 5]))])))
