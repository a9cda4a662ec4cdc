"""Spans that are wrong, or very many."""

from __future__ import annotations

from collections.abc import Iterable
from time import process_time
from typing import Any

import anyio
import pytest

from agentest.plugins.servers.port import Identity, SpanRequest, TurnTraces
from agentest.plugins.servers.traces.collector import Collector
from agentest.plugins.servers.traces.conventions import Span
from agentest.plugins.servers.traces.server import InvalidSpans, spans_in_json
from agentest.plugins.servers.traces.span_calls import SpanWriter
from agentest.support.trace_context import TraceContext

KEY = "0123456789abcdef01234567"
TRACE = TraceContext(KEY, 0).trace_id
WHO = Identity(key=KEY, session_id=None, conversation_id="a-1", scenario="a", agent="shop")


def collector(notes: list[str] | None = None) -> Collector:
    return Collector(
        "shop",
        one_at_a_time=lambda: False,
        writer=SpanWriter(None, str),
        on_note=(notes if notes is not None else []).append,
        patience_s=0,
    )


def tool_span(number: int, trace: str = TRACE, parent: int | None = None, **attributes: Any) -> Span:
    told = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "book", **attributes}
    above = None if parent is None else f"{parent:016x}"
    return Span(trace_id=trace, span_id=f"{number:016x}", parent_id=above, start_ns=number, attributes=told)


@pytest.mark.parametrize(
    "wrong",
    [
        '"startTimeUnixNano": 1e999',
        '"kind": 1e999',
        f'"endTimeUnixNano": "{"9" * 4000}"',
        '"startTimeUnixNano": "-1"',
    ],
    ids=["an endless time", "an endless kind", "a time of 4,000 digits", "a time before all times"],
)
def test_invalid_numbers_are_refused(wrong: str) -> None:
    """A number over 64 bits is refused like any invalid OTLP body."""
    span = f'{{"traceId": "{TRACE}", "spanId": "{1:016x}", {wrong}}}'
    with pytest.raises(InvalidSpans, match="in JSON"):
        spans_in_json(f'{{"resourceSpans": [{{"scopeSpans": [{{"spans": [{span}]}}]}}]}}'.encode())


@pytest.mark.slow
def test_foreign_spans_are_counted_and_not_kept_for_ever() -> None:
    """A hundred thousand foreign spans are accepted, and large ones do not fill the memory."""
    notes: list[str] = []
    found = collector(notes)
    found.begin(WHO)
    began = process_time()
    found.add(tool_span(n, trace=f"{n + 1:032x}") for n in range(100_000))
    assert process_time() - began < 20  # it took minutes
    large = "x" * 1_000_000
    found.add(tool_span(n, trace=f"{n + 1:032x}", **{"input.value": large + str(n)}) for n in range(300))
    assert found._stray_chars <= 100_000_000
    found.end(KEY)
    found.close()
    assert any("spans were received, but none belongs to a conversation" in note for note in notes)


def asked(spans: Iterable[Span]) -> TurnTraces:
    """The calls of a turn from its spans."""
    found = collector()
    found.begin(WHO)
    found.add(spans)
    turn = SpanRequest(key=KEY, turn_index=0, began_ns=0, asks=1, requests=0, wait=False)
    return anyio.run(found.spans_of, turn)


@pytest.mark.slow
def test_very_many_calls_are_told_apart() -> None:
    """Thousands of calls side by side, and thousands of spans around one another, take no minutes."""
    began = process_time()
    beside = asked(tool_span(n, **{"gen_ai.tool.call.id": f"c{n}"}) for n in range(1, 10_001))
    assert len(beside.calls) == 10_000
    within = asked(tool_span(n, parent=n - 1) for n in range(1, 5_001))
    assert len(within.calls) == 1
    assert process_time() - began < 20


def test_a_call_is_one_however_its_id_is_told() -> None:
    """Two instrumentations that report one call by its id are still one call."""
    one = tool_span(1, **{"gen_ai.tool.call.id": "c1"})
    other = Span(
        trace_id=TRACE, span_id=f"{2:016x}", start_ns=2, scope="another", attributes=dict(one.attributes)
    )
    told = asked([one, other])
    assert [call.call.name for call in told.calls] == ["book"]


def test_spans_in_a_circle_are_one_call() -> None:
    """Spans that are around one another end nothing: they report one call."""
    circle = [tool_span(1, parent=2), tool_span(2, parent=1), tool_span(3, parent=1), tool_span(4, parent=4)]
    assert len(asked(circle).calls) == 2


def test_a_secret_in_megabytes_is_hidden() -> None:
    """A very long text keeps its beginning, without secrets or a part of one at its end."""
    lines: list[bytes] = []
    kept = SpanWriter(lines.append, lambda text: text.replace("swordfish", "*"))
    kept.add(WHO, tool_span(1, **{"input.value": "swordfish" * 1_000_000}))
    kept.write(KEY, lambda span: 0, {f"{1:016x}": Any})  # type: ignore[dict-item]
    assert b"9,000,000 characters" in lines[0]
    assert len(lines[0]) < 20_000
    assert b"sword" not in lines[0]


def test_attributes_of_wrong_types_tell_nothing() -> None:
    """An attribute that is not a text, no number, or an endless one, is passed over: spans are anybody's."""
    values: tuple[Any, ...] = (["chat"], {"a": [1]}, 1e999, -1e999, 5, "[" * 500, None, True, b"")
    for value in values:
        one = {key: value for key in _KEYS if key != "gen_ai.operation.name"}
        spans = [
            Span(trace_id=TRACE, span_id=f"{n:016x}", attributes={**one, "gen_ai.operation.name": operation})
            for n, operation in enumerate(("execute_tool", "chat", value), 1)
        ]
        told = asked([*spans, tool_span(9)])
        assert told.usage.total_tokens < 100, value
        assert "book" in [call.call.name for call in told.calls], value


_KEYS = (
    "gen_ai.conversation.id",
    "session.id",
    "agentest.conversation",
    "gen_ai.operation.name",
    "llm.request.type",
    "gen_ai.tool.call.id",
    "gen_ai.tool.call.arguments",
    "gen_ai.usage.input_tokens",
    "gen_ai.usage.output_tokens",
    "llm.token_count.prompt",
    "gen_ai.input.messages",
    "gen_ai.output.messages",
    "ai.response.toolCalls",
    "input.value",
    "output.value",
    f"gen_ai.completion.{'9' * 5000}.tool_calls.0.name",
)
