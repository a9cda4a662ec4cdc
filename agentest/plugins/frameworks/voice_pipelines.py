"""Run voice agents in text, with their functions answered by mocks: LiveKit Agents and Pipecat.

A LiveKit agent belongs to one session and a Pipecat pipeline to one conversation, so the handler is a
function that makes one. For LiveKit, it may also start a session, as LiveKit's own tests do. A pipeline has
the context aggregators and the language model, without transport, speech recognition and speech synthesis.

Tasks of a session or pipeline are older than the turn, so they do not inherit its gate.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from typing import Any
from weakref import WeakKeyDictionary

from agentest.agents.port import AgentReply
from agentest.domain.messages import Message, last_user_message
from agentest.domain.transcript import Remark
from agentest.plugins.frameworks.client import Begin, Framework, NextAgent, result_text
from agentest.plugins.frameworks.tool_gate import ToolGate, gate_method
from agentest.support.errors import AgentError, AgentestError

_gates: WeakKeyDictionary[Any, ToolGate] = WeakKeyDictionary()


def prepare_livekit(_: Any, next_agent: NextAgent) -> Begin:
    """Install the gate in front of all function tools."""
    executor = import_module("livekit.agents.voice.tool_executor")._ToolExecutor
    gate_method(executor, "execute", _gated_execute)
    return lambda context, _: LiveKitConversation(next_agent, context)


def _gated_execute(execute: Callable[..., Any]) -> Callable[..., Any]:
    async def execute_by_the_gate(
        self: Any, *, tool: Any, run_ctx: Any, raw_arguments: dict[str, Any], **more: Any
    ) -> Any:
        async def real() -> Any:
            return await execute(self, tool=tool, run_ctx=run_ctx, raw_arguments=raw_arguments, **more)

        gate, call = _gates.get(run_ctx.session), run_ctx.function_call
        if gate is None:
            return await real()
        try:
            answer = await gate.answer(call.name, dict(raw_arguments), real, call.call_id, shown=_shown)
        except AgentestError:  # the gate has it, and it ends the turn
            raise import_module("livekit.agents").StopResponse from None
        return result_text(answer.value) if answer.mocked else answer.value

    return execute_by_the_gate


def _shown(value: Any) -> Any:
    return value if isinstance(value, str | int | float | dict | list | None) else type(value).__name__


class LiveKitConversation:
    """One conversation: one session, which stores the history."""

    def __init__(self, next_agent: NextAgent, context: Any) -> None:
        self._next_agent = next_agent
        self._context = context
        self._session: Any = None

    async def close(self) -> None:
        """End the session."""
        if self._session is not None:
            await self._session.aclose()

    async def turn(self, messages: Sequence[Message], gate: ToolGate) -> AgentReply:
        """Run the session with the user's last message."""
        if self._session is None:
            await self._open(gate)
        _gates[self._session] = gate
        result = await self._session.run(user_input=last_user_message(messages).text)
        texts: list[str] = []
        outputs = {
            each.item.call_id: each.item for each in result.events if each.type == "function_call_output"
        }
        for event in result.events:
            if event.type == "function_call":
                call, output = event.item, outputs.get(event.item.call_id)
                if not gate.saw(call.call_id, call.name, call.arguments):
                    why = output.output if output else "no answer"
                    gate.note_not_run(call.name, call.arguments, why, call.call_id)
            elif event.type == "message" and event.item.role == "assistant" and event.item.text_content:
                texts.append(event.item.text_content)
        author = self._session.current_agent.label
        remarks = tuple(Remark(author, text) for text in texts[:-1])
        return AgentReply(texts[-1] if texts else None, remarks=remarks, author=author)

    async def _open(self, gate: ToolGate) -> None:
        made = await self._next_agent()
        session_class = import_module("livekit.agents").AgentSession
        if isinstance(made, session_class):
            self._session = made
            return
        self._session = session_class(**({} if self._context is None else {"userdata": self._context}))
        _gates[self._session] = gate
        await self._session.start(made, record=False)


def prepare_pipecat(pipeline: Any, next_pipeline: NextAgent) -> Begin:
    """Check that the pipeline has a language model. Raises ValueError."""
    import_module("pipecat.pipeline.worker")
    if not list(_models_in(pipeline)):
        raise ValueError("the pipeline has no LLM service; add it and its context aggregators")
    return lambda context, _: PipecatConversation(next_pipeline, context)


def _models_in(pipeline: Any) -> Iterator[Any]:
    for each in getattr(pipeline, "processors", ()):
        if hasattr(each, "run_function_calls"):
            yield each
        else:
            yield from _models_in(each)


class _GatedFunctions(dict[Any, Any]):
    """The functions of an LLM service. Those that it looks up ask the gate of the turn first."""

    def __init__(self, functions: Mapping[Any, Any], conversation: PipecatConversation) -> None:
        super().__init__(functions)
        self._conversation = conversation

    def __getitem__(self, name: Any) -> Any:
        item = super().__getitem__(name)
        return replace(item, handler=self._gated(item.handler))

    def _gated(self, handler: Any) -> Callable[[Any], Any]:
        async def handle(params: Any) -> None:
            gate, args = self._conversation.gate, dict(params.arguments)
            results: list[tuple[Any, Any]] = []  # results and properties that the function gives

            async def keep(result: Any, *, properties: Any = None) -> None:
                results.append((result, properties))

            async def real() -> Any:
                own = replace(params, result_callback=keep)
                if hasattr(handler, "invoke"):
                    await handler.invoke(args=params.arguments, params=own)
                else:
                    await handler(own)
                return results[-1][0] if results else None

            try:
                answer = await gate.answer(params.function_name, args, real, params.tool_call_id)
            except AgentestError:  # the gate has it, and it ends the turn
                self._conversation.end_turn()
                return
            await params.result_callback(answer.value, properties=results[-1][1] if results else None)

        return handle


class PipecatConversation:
    """One conversation: one pipeline, which stores the history."""

    def __init__(self, next_pipeline: NextAgent, context: Any) -> None:
        self.gate: ToolGate  # the gate of the turn
        self._next_pipeline = next_pipeline
        self._context = context
        self._worker: Any = None
        self._running: asyncio.Task[None] | None = None
        self._texts: list[str] = []
        self._calls: dict[str, list[Any]] = {}  # call id → name, arguments, result
        self._has_calls = False
        self._error: str | None = None
        self._done = asyncio.Event()

    async def close(self) -> None:
        """End the pipeline."""
        if self._worker is not None:
            await self._worker.cancel()
        if self._running is not None:
            self._running.cancel()
            with suppress(asyncio.CancelledError):
                await self._running

    def end_turn(self) -> None:
        """Stop waiting for the reply."""
        self._done.set()

    async def turn(self, messages: Sequence[Message], gate: ToolGate) -> AgentReply:
        """Send the user's last message and return the text of the last response of the model."""
        self.gate, self._texts, self._calls, self._error = gate, [], {}, None
        self._done.clear()
        if self._worker is None:
            await self._start()
        frames = import_module("pipecat.frames.frames")
        message = {"role": "user", "content": last_user_message(messages).text}
        await self._worker.queue_frame(frames.LLMMessagesAppendFrame([message], run_llm=True))
        await self._done.wait()
        for call_id, (name, args, result) in self._calls.items():
            if not gate.saw(call_id, name, args):
                gate.note_not_run(name, args, result, call_id)
        if self._running is not None and self._running.done() and not gate.ended:
            self._running.result()
            raise AgentError("the pipeline ended before it had replied")
        if self._error is not None:
            raise AgentError(f"the pipeline reports an error: {self._error}")
        texts = [text for text in self._texts if text.strip()]
        remarks = tuple(Remark("pipecat", text) for text in texts[:-1])
        return AgentReply(texts[-1] if texts else None, remarks=remarks)

    async def _start(self) -> None:
        pipeline = await self._next_pipeline()
        for model in _models_in(pipeline):
            model._functions = _GatedFunctions(model._functions, self)
        observers = import_module("pipecat.observers.base_observer")
        conversation = self

        class Observer(observers.BaseObserver):  # type: ignore[misc, name-defined]
            async def on_push_frame(self, data: Any) -> None:
                if data.first_push:
                    conversation._see(data.frame)

        workers, runners = import_module("pipecat.pipeline.worker"), import_module("pipecat.workers.runner")
        self._worker = workers.PipelineWorker(
            pipeline,
            cancel_on_idle_timeout=False,
            enable_rtvi=False,
            observers=[Observer()],
            app_resources=self._context,
        )
        runner = runners.WorkerRunner(handle_sigint=False, check_dangling_tasks=False)
        await runner.add_workers(self._worker)
        self._running = asyncio.create_task(runner.run())
        self._running.add_done_callback(lambda _: self._done.set())

    def _see(self, frame: Any) -> None:
        match type(frame).__name__:
            case "LLMFullResponseStartFrame":
                self._texts.append("")
                self._has_calls = False
            case "LLMTextFrame" if self._texts:
                self._texts[-1] += frame.text
            case "FunctionCallsStartedFrame":
                self._has_calls = True
            case "FunctionCallInProgressFrame":
                self._calls[frame.tool_call_id] = [frame.function_name, frame.arguments, "no answer"]
            case "FunctionCallResultFrame" if frame.tool_call_id in self._calls:
                self._calls[frame.tool_call_id][2] = frame.result
            case "LLMFullResponseEndFrame" if not self._has_calls:
                self._done.set()
            case "ErrorFrame" | "FatalErrorFrame":
                self._error = str(frame.error)
                self._done.set()


open_livekit = Framework("LiveKit Agents", prepare_livekit, single_use=True).open
open_pipecat = Framework("Pipecat", prepare_pipecat, single_use=True).open
