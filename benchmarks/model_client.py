"""CPU of asking a model, directly or through litellm: `python -m benchmarks.model_client --path litellm …`.

From `Model.ask` to a validated answer, in this process; the answer comes from the fake model. Prints as JSON
the milliseconds of CPU per call. What is done once (imports, connections, caches) is done before.
"""

from __future__ import annotations

import argparse
import json
from time import process_time

import anyio

from agentest.config.config import Config
from agentest.judging.answers import ScaleAnswer
from agentest.judging.questions import judge_messages, question
from agentest.models.admission import LocalGates
from agentest.models.factory import ModelTerms, open_models
from agentest.models.port import CallKey, Model
from agentest.models.providers import resolve

PATHS = {
    "direct": {"provider": "openai-compatible", "model": "fake"},
    "litellm": {"provider": "litellm", "model": "openai/fake"},
}
_WARM_UP_CALLS = 40
_CONTEXT = "A conversation, as long as those of four turns are. " * 60


async def cpu_ms(path: str, port: int, calls: int, in_flight: int) -> float:
    """CPU per call, of this process alone."""
    options = {"base_url": f"http://127.0.0.1:{port}/v1", "api_key": "none"}
    config = Config.model_validate(
        {"agent": {"endpoint": "http://localhost"}, "provider_options": options, **PATHS[path]}
    )
    async with open_models(None, resolve(config, config.judge, {}), ModelTerms(LocalGates(64))) as models:
        assert models.judge
        await _ask(models.judge, _WARM_UP_CALLS, in_flight)
        before = process_time()
        await _ask(models.judge, calls, in_flight)
        return (process_time() - before) * 1000 / calls


async def _ask(model: Model, calls: int, in_flight: int) -> None:
    left = iter(range(calls))
    messages = judge_messages((_CONTEXT, "The turn to judge: turn 0."), question("helpfulness"))

    async def one_after_another() -> None:
        for _ in left:
            await model.ask(messages, ScaleAnswer, CallKey("judge", "benchmark", metric="helpfulness"))

    async with anyio.create_task_group() as tasks:
        for _ in range(in_flight):
            tasks.start_soon(one_after_another)


def main() -> None:
    """Entry point of the process that is measured."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--path", choices=PATHS, required=True)
    for name in ("port", "calls", "in-flight"):
        parser.add_argument(f"--{name}", type=int, required=True)
    given = parser.parse_args()
    print(json.dumps(anyio.run(cpu_ms, given.path, given.port, given.calls, given.in_flight)))


if __name__ == "__main__":
    main()
