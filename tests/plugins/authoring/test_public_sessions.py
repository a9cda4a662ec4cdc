"""A log of recorded conversations in the shapes of public tools: what `agentest judge` reads in each.

The content is ours: the smallest file of the same shape. Each has the same conversation, as far as it can.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

from agentest.domain.transcript import Conversation
from agentest.plugins.authoring.commands.row_import import import_
from agentest.plugins.authoring.trace_import import recorded_conversations
from agentest.scenarios.discovery import discover_file
from agentest.support.errors import UsageError
from agentest.support.importing import Imports

ASKED, TOLD = "Where is 17?", "On its way."
CALL = "call get_order {'id': 17} → shipped"
WHOLE = (ASKED, CALL, TOLD)
PLAIN = (ASKED, TOLD)
BEFORE_UNKNOWN = "refused: records of unknown form"


class Session(NamedTuple):
    """A public shape, what happened with it, and the conversation in our file of this shape."""

    source: str
    before: str
    content: Any  # JSON, a list of lines, or a text
    steps: tuple[str, ...] = WHOLE  # () if the file is refused
    told: str = ""  # a part of the notes, or of the refusal
    name: str = "a.json"


class Lines(list[Any]):
    """The records of a file of JSON lines."""


ARGS = json.dumps({"id": 17})
CHAT_CALL = {"id": "c", "type": "function", "function": {"name": "get_order", "arguments": ARGS}}
CHAT = [
    {"role": "user", "content": ASKED},
    {"role": "assistant", "content": None, "tool_calls": [CHAT_CALL]},
    {"role": "tool", "tool_call_id": "c", "content": "shipped"},
    {"role": "assistant", "content": TOLD},
]
GEN_AI = [
    {"role": "user", "parts": [{"type": "text", "content": ASKED}]},
    {
        "role": "assistant",
        "parts": [{"type": "tool_call", "id": "c", "name": "get_order", "arguments": {"id": 17}}],
    },
    {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c", "response": "shipped"}]},
    {"role": "assistant", "parts": [{"type": "text", "content": TOLD}], "finish_reason": "stop"},
]


def claude(role: str, *blocks: Any, **more: Any) -> dict[str, Any]:
    about = {"uuid": "u", "parentUuid": None, "sessionId": "s", "isSidechain": False, "version": "2.1.0"}
    return {**about, "type": role, "message": {"role": role, "content": [*blocks]}, **more}


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def codex(kind: str, **payload: Any) -> dict[str, Any]:
    return {"timestamp": "2026-01-01T00:00:00Z", "type": kind, "payload": payload}


def said(role: str, value: str) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    return codex("response_item", type="message", role=role, content=[{"type": kind, "text": value}])


USED = {"type": "tool_use", "id": "c", "name": "get_order", "input": {"id": 17}}
RESULT = {"type": "tool_result", "tool_use_id": "c", "content": [text("shipped")]}
VAPI = [
    {"role": "system", "message": "You help.", "time": 1},
    {"role": "bot", "message": "Hello", "time": 2},
    {"role": "user", "message": ASKED, "time": 3},
    {"role": "tool_calls", "toolCalls": [CHAT_CALL], "message": "", "time": 4},
    {"role": "tool_call_result", "toolCallId": "c", "name": "get_order", "result": "shipped", "time": 5},
    {"role": "bot", "message": TOLD, "time": 6},
]
ACTIVITIES = [
    {"type": "trace", "valueType": "ConversationInfo", "value": {"lastSessionOutcome": "Resolved"}},
    {
        "type": "message",
        "timestamp": 1,
        "from": {"id": "b", "role": 0},
        "text": "Hello",
        "conversation": {"id": "k"},
    },
    {
        "type": "message",
        "timestamp": 2,
        "from": {"id": "u", "role": 1},
        "text": ASKED,
        "conversation": {"id": "k"},
    },
    {
        "type": "message",
        "timestamp": 3,
        "from": {"id": "b", "role": 0},
        "text": TOLD,
        "conversation": {"id": "k"},
    },
]
NODES = {
    "r": {"id": "r", "message": None, "parent": None, "children": ["1"]},
    "1": {
        "id": "1",
        "parent": "r",
        "message": {"author": {"role": "user"}, "content": {"content_type": "text", "parts": [ASKED]}},
    },
    "2": {
        "id": "2",
        "parent": "1",
        "message": {"author": {"role": "assistant"}, "content": {"content_type": "text", "parts": [TOLD]}},
    },
}


def span(kind: str, name: str, given: Any, output: Any, at: int) -> dict[str, Any]:
    return {
        "type": kind,
        "name": name,
        "input": given,
        "output": output,
        "start_time": f"2026-01-01T00:00:0{at}Z",
    }


LOG = (
    # Coding agents
    Session(
        "Claude Code: ~/.claude/projects/*.jsonl",
        BEFORE_UNKNOWN,
        Lines(
            [
                {"type": "summary", "summary": "Orders", "leafUuid": "u"},
                {"type": "file-history-snapshot", "messageId": "m", "snapshot": {}},
                claude("user", text("<system-reminder>Be brief.</system-reminder>"), isMeta=True),
                claude("user", text(ASKED)),
                claude("assistant", {"type": "thinking", "thinking": "Hm", "signature": "x"}),
                claude("assistant", USED),
                claude("user", text("Find it."), isSidechain=True),
                claude("assistant", text("Found."), isSidechain=True),
                claude("user", RESULT, toolUseResult={"stdout": "shipped"}),
                claude("assistant", text(TOLD)),
                {"type": "system", "subtype": "turn_duration", "durationMs": 5, "sessionId": "s"},
            ]
        ),
        told="left out 2 × message of a subagent",
        name="a.jsonl",
    ),
    Session(
        "Codex CLI: ~/.codex/sessions/**/rollout-*.jsonl",
        BEFORE_UNKNOWN,
        Lines(
            [
                codex("session_meta", id="s", cwd="/", cli_version="0.98.0"),
                said("developer", "Be brief."),
                said("user", "<environment_context>\n<cwd>/</cwd>\n</environment_context>"),
                said("user", ASKED),
                codex("event_msg", type="user_message", message=ASKED),
                codex("turn_context", cwd="/", model="m"),
                codex("response_item", type="reasoning", summary=[], encrypted_content="x"),
                codex("response_item", type="function_call", name="get_order", arguments=ARGS, call_id="c"),
                codex("event_msg", type="token_count", info=None),
                codex("response_item", type="function_call_output", call_id="c", output="shipped"),
                codex("event_msg", type="agent_message", message=TOLD),
                said("assistant", TOLD),
            ]
        ),
        told="1 × text that the agent's program wrote as the user",
        name="rollout-1.jsonl",
    ),
    Session(
        "Codex CLI: the events of `codex exec --json`, which have no message of the user",
        "refused",
        Lines(
            [
                {"type": "thread.started", "thread_id": "t"},
                {"type": "item.completed", "item": {"id": "i", "type": "agent_message", "text": TOLD}},
                {"type": "turn.completed", "usage": {"input_tokens": 1}},
            ]
        ),
        (),
        "no session with a user's message",
        name="a.jsonl",
    ),
    Session(
        "Gemini CLI: ~/.gemini/tmp/*/chats/session-*.json",
        "refused: no reply was found",
        {
            "sessionId": "s",
            "projectHash": "h",
            "messages": [
                {"id": "1", "type": "user", "content": ASKED},
                {
                    "id": "2",
                    "type": "gemini",
                    "content": "",
                    "toolCalls": [
                        {
                            "id": "c",
                            "name": "get_order",
                            "args": {"id": 17},
                            "result": [
                                {"functionResponse": {"id": "c", "name": "get_order", "response": "shipped"}}
                            ],
                            "status": "success",
                        }
                    ],
                },
                {"id": "3", "type": "gemini", "content": TOLD, "thoughts": []},
            ],
        },
    ),
    # Voice platforms
    Session(
        "Retell: calls with transcript_with_tool_calls",
        BEFORE_UNKNOWN,
        {
            "call_id": "r",
            "call_status": "ended",
            "transcript": f"User: {ASKED}\nAgent: {TOLD}\n",
            "transcript_object": [
                {"role": "user", "content": ASKED, "words": []},
                {"role": "agent", "content": TOLD, "words": []},
            ],
            "transcript_with_tool_calls": [
                {"role": "user", "content": ASKED, "words": []},
                {"role": "tool_call_invocation", "tool_call_id": "c", "name": "get_order", "arguments": ARGS},
                {"role": "tool_call_result", "tool_call_id": "c", "content": "shipped"},
                {"role": "agent", "content": TOLD, "words": []},
            ],
        },
        told="`transcript_with_tool_calls`",
    ),
    Session(
        "Vapi: calls with artifact.messages",
        BEFORE_UNKNOWN,
        {"id": "v", "status": "ended", "artifact": {"messages": VAPI, "transcript": "AI: Hello"}},
        told="1 × step of the agent before",
    ),
    Session(
        "Vapi: end-of-call-report",
        BEFORE_UNKNOWN,
        {"message": {"type": "end-of-call-report", "call": {"id": "v"}, "artifact": {"messages": VAPI}}},
    ),
    Session(
        "ElevenLabs: conversations with a transcript",
        BEFORE_UNKNOWN,
        {
            "conversation_id": "e",
            "status": "done",
            "transcript": [
                {"role": "user", "message": ASKED, "tool_calls": [], "tool_results": []},
                {
                    "role": "agent",
                    "message": None,
                    "tool_calls": [{"request_id": "c", "tool_name": "get_order", "params_as_json": ARGS}],
                    "tool_results": [
                        {"request_id": "c", "tool_name": "get_order", "result_value": "shipped"}
                    ],
                },
                {"role": "agent", "message": TOLD, "tool_calls": [], "tool_results": []},
            ],
        },
    ),
    Session(
        "LiveKit: the history of a session",
        BEFORE_UNKNOWN,
        {
            "items": [
                {"id": "1", "type": "message", "role": "user", "content": [ASKED]},
                {"id": "2", "type": "function_call", "call_id": "c", "name": "get_order", "arguments": ARGS},
                {
                    "id": "3",
                    "type": "function_call_output",
                    "call_id": "c",
                    "name": "get_order",
                    "output": "shipped",
                },
                {"id": "4", "type": "message", "role": "assistant", "content": [TOLD]},
                {"id": "5", "type": "agent_handoff", "new_agent_id": "b"},
            ]
        },
    ),
    Session(
        "Amazon Connect: Contact Lens transcripts",
        BEFORE_UNKNOWN,
        {
            "Version": "1.1.0",
            "ContactId": "k",
            "Participants": [{"ParticipantId": "1", "ParticipantRole": "CUSTOMER"}],
            "Transcript": [
                {"Id": "1", "ParticipantRole": "CUSTOMER", "Content": ASKED, "BeginOffsetMillis": 1},
                {"Id": "2", "ParticipantRole": "AGENT", "Content": TOLD, "BeginOffsetMillis": 2},
            ],
        },
        PLAIN,
    ),
    # Chat platforms
    Session(
        "Copilot Studio: rows of conversationtranscript, with activities as text",
        BEFORE_UNKNOWN,
        {"value": [{"conversationtranscriptid": "k", "content": json.dumps({"activities": ACTIVITIES})}]},
        PLAIN,
        "1 × step of the agent before",
    ),
    Session("Bot Framework: .transcript files", BEFORE_UNKNOWN, ACTIVITIES[1:], PLAIN),
    Session(
        "Voiceflow: transcripts of the v2 API",
        BEFORE_UNKNOWN,
        [
            {"turnID": "1", "type": "request", "payload": {"type": "launch"}, "format": "request"},
            {
                "turnID": "1",
                "type": "debug",
                "payload": {"type": "debug", "payload": {"message": "x"}},
                "format": "trace",
            },
            {
                "turnID": "2",
                "type": "request",
                "payload": {"type": "text", "payload": ASKED},
                "format": "request",
            },
            {
                "turnID": "2",
                "type": "text",
                "payload": {"type": "text", "payload": {"message": TOLD}},
                "format": "trace",
            },
        ],
        PLAIN,
    ),
    Session(
        "Rasa: the events of a tracker",
        "refused: taken for a session of ADK without a message",
        {
            "sender_id": "x",
            "events": [
                {"event": "action", "name": "action_listen", "timestamp": 1},
                {"event": "user", "text": ASKED, "parse_data": {}, "timestamp": 2},
                {"event": "slot", "name": "order", "value": "17", "timestamp": 3},
                {"event": "bot", "text": TOLD, "data": {}, "timestamp": 4},
            ],
        },
        PLAIN,
    ),
    Session(
        "watsonx Assistant: logs",
        BEFORE_UNKNOWN,
        {
            "logs": [
                {
                    "log_id": "1",
                    "session_id": "w",
                    "request": {"input": {"message_type": "text", "text": ASKED}},
                    "response": {"output": {"generic": [{"response_type": "text", "text": TOLD}]}},
                }
            ]
        },
        PLAIN,
    ),
    Session(
        "watsonx Orchestrate: messages of a thread with their steps",
        "the calls were lost without a word",
        [
            {"thread_id": "o", "role": "user", "content": [{"response_type": "text", "text": ASKED}]},
            {
                "thread_id": "o",
                "role": "assistant",
                "content": [{"response_type": "text", "text": TOLD}],
                "step_history": [
                    {
                        "role": "assistant",
                        "step_details": [
                            {
                                "type": "tool_calls",
                                "tool_calls": [{"id": "c", "name": "get_order", "args": {"id": 17}}],
                            }
                        ],
                    },
                    {
                        "role": "assistant",
                        "step_details": [
                            {
                                "type": "tool_response",
                                "content": "shipped",
                                "name": "get_order",
                                "tool_call_id": "c",
                            }
                        ],
                    },
                ],
            },
        ],
    ),
    Session(
        "Intercom: a conversation with its parts",
        BEFORE_UNKNOWN,
        {
            "type": "conversation",
            "id": "i",
            "source": {"type": "conversation", "body": ASKED, "author": {"type": "user", "id": "1"}},
            "conversation_parts": {
                "type": "conversation_part.list",
                "conversation_parts": [
                    {"part_type": "comment", "body": TOLD, "author": {"type": "bot", "id": "2"}},
                    {"part_type": "close", "body": None, "author": {"type": "bot", "id": "2"}},
                ],
            },
        },
        PLAIN,
    ),
    Session(
        "Zendesk: a table of comments",
        "refused: not JSON",
        f"Ticket ID,Author Type,Body,Created At\n9,customer,{ASKED},2026-01-01\n9,agent,{TOLD},2026-01-02\n",
        PLAIN,
        name="a.csv",
    ),
    Session(
        "Botpress: messages of a conversation, the newest first",
        BEFORE_UNKNOWN,
        {
            "messages": [
                {
                    "id": "2",
                    "createdAt": "2026-01-02",
                    "direction": "outgoing",
                    "payload": {"type": "text", "text": TOLD},
                },
                {
                    "id": "1",
                    "createdAt": "2026-01-01",
                    "direction": "incoming",
                    "payload": {"type": "text", "text": ASKED},
                },
            ]
        },
        PLAIN,
    ),
    Session(
        "ChatGPT: conversations.json of an export",
        BEFORE_UNKNOWN,
        [{"title": "Orders", "conversation_id": "g", "mapping": NODES, "current_node": "2"}],
        PLAIN,
    ),
    Session(
        "Claude.ai: conversations.json of an export",
        BEFORE_UNKNOWN,
        [
            {
                "uuid": "x",
                "name": "Orders",
                "chat_messages": [
                    {"uuid": "1", "sender": "human", "text": ASKED, "content": [text(ASKED)]},
                    {"uuid": "2", "sender": "assistant", "text": TOLD, "content": [text(TOLD)]},
                ],
            }
        ],
        PLAIN,
    ),
    Session(
        "ShareGPT: conversations with `from` and `value`",
        BEFORE_UNKNOWN,
        [{"id": "i", "conversations": [{"from": "human", "value": ASKED}, {"from": "gpt", "value": TOLD}]}],
        PLAIN,
    ),
    Session("ChatML: lines with `messages`", "right", Lines([{"messages": CHAT}]), name="a.jsonl"),
    # Frameworks
    Session(
        "Vercel AI SDK 5: UI messages with parts of tools",
        "the calls were lost without a word",
        {
            "id": "u",
            "messages": [
                {"id": "1", "role": "user", "parts": [text(ASKED)]},
                {
                    "id": "2",
                    "role": "assistant",
                    "parts": [
                        {"type": "step-start"},
                        {
                            "type": "tool-get_order",
                            "toolCallId": "c",
                            "state": "output-available",
                            "input": {"id": 17},
                            "output": "shipped",
                        },
                        text(TOLD),
                    ],
                },
            ],
        },
    ),
    Session(
        "Bedrock Converse, Strands: messages with toolUse and toolResult",
        "the calls were lost without a word",
        {
            "messages": [
                {"role": "user", "content": [{"text": ASKED}]},
                {
                    "role": "assistant",
                    "content": [{"toolUse": {"toolUseId": "c", "name": "get_order", "input": {"id": 17}}}],
                },
                {
                    "role": "user",
                    "content": [
                        {
                            "toolResult": {
                                "toolUseId": "c",
                                "status": "success",
                                "content": [{"text": "shipped"}],
                            }
                        }
                    ],
                },
                {"role": "assistant", "content": [{"text": TOLD}]},
            ]
        },
    ),
    Session(
        "Pydantic AI: all_messages_json()",
        BEFORE_UNKNOWN,
        [
            {
                "kind": "request",
                "parts": [
                    {"part_kind": "system-prompt", "content": "You help."},
                    {"part_kind": "user-prompt", "content": ASKED},
                ],
            },
            {
                "kind": "response",
                "parts": [
                    {"part_kind": "tool-call", "tool_name": "get_order", "args": ARGS, "tool_call_id": "c"}
                ],
            },
            {
                "kind": "request",
                "parts": [
                    {
                        "part_kind": "tool-return",
                        "tool_name": "get_order",
                        "content": "shipped",
                        "tool_call_id": "c",
                    }
                ],
            },
            {"kind": "response", "parts": [{"part_kind": "text", "content": TOLD}]},
        ],
    ),
    Session(
        "AutoGen: the messages of a team",
        "refused: no message was known",
        {
            "messages": [
                {"source": "user", "type": "TextMessage", "content": ASKED},
                {
                    "source": "assistant",
                    "type": "ToolCallRequestEvent",
                    "content": [{"id": "c", "name": "get_order", "arguments": ARGS}],
                },
                {
                    "source": "assistant",
                    "type": "ToolCallExecutionEvent",
                    "content": [
                        {"call_id": "c", "name": "get_order", "content": "shipped", "is_error": False}
                    ],
                },
                {"source": "assistant", "type": "TextMessage", "content": TOLD},
            ]
        },
    ),
    Session(
        "Letta: messages of an agent",
        BEFORE_UNKNOWN,
        [
            {"id": "1", "message_type": "user_message", "content": ASKED},
            {"id": "2", "message_type": "reasoning_message", "reasoning": "Hm"},
            {
                "id": "3",
                "message_type": "tool_call_message",
                "tool_call": {"name": "get_order", "arguments": ARGS, "tool_call_id": "c"},
            },
            {"id": "4", "message_type": "tool_return_message", "tool_return": "shipped", "tool_call_id": "c"},
            {"id": "5", "message_type": "assistant_message", "content": TOLD},
        ],
    ),
    Session(
        "LangGraph: the state of a thread",
        BEFORE_UNKNOWN,
        {
            "values": {
                "messages": [
                    {"type": "human", "content": ASKED},
                    {
                        "type": "ai",
                        "content": "",
                        "tool_calls": [{"id": "c", "name": "get_order", "args": {"id": 17}}],
                    },
                    {"type": "tool", "tool_call_id": "c", "content": "shipped", "name": "get_order"},
                    {"type": "ai", "content": TOLD},
                ]
            },
            "next": [],
            "metadata": {"thread_id": "t"},
        },
    ),
    Session(
        "A2A: a task with its history and artifact",
        BEFORE_UNKNOWN,
        {
            "kind": "task",
            "id": "t",
            "contextId": "c",
            "history": [{"kind": "message", "role": "user", "parts": [{"kind": "text", "text": ASKED}]}],
            "status": {
                "state": "completed",
                "message": {"kind": "message", "role": "agent", "parts": [{"kind": "text", "text": TOLD}]},
            },
        },
        PLAIN,
    ),
    Session(
        "Cohere: chat_history",
        BEFORE_UNKNOWN,
        {"chat_history": [{"role": "USER", "message": ASKED}, {"role": "CHATBOT", "message": TOLD}]},
        PLAIN,
    ),
    Session(
        "Mistral: entries of a conversation",
        BEFORE_UNKNOWN,
        {
            "conversation_id": "m",
            "entries": [
                {"type": "message.input", "role": "user", "content": ASKED},
                {"type": "function.call", "tool_call_id": "c", "name": "get_order", "arguments": ARGS},
                {"type": "function.result", "tool_call_id": "c", "result": "shipped"},
                {"type": "message.output", "role": "assistant", "content": TOLD},
            ],
        },
    ),
    Session(
        "OpenAI Assistants: messages of a thread, the newest first",
        "refused: the reply came before the question",
        {
            "object": "list",
            "data": [
                {
                    "id": f"msg_{at}",
                    "created_at": at,
                    "thread_id": "t",
                    "role": role,
                    "content": [{"type": "text", "text": {"value": value, "annotations": []}}],
                }
                for at, role, value in ((2, "assistant", TOLD), (1, "user", ASKED))
            ],
        },
        PLAIN,
    ),
    # Observability
    Session(
        "Braintrust: an export of logs",
        "right",
        [
            {
                "root_span_id": "r",
                "span_id": id,
                "span_attributes": {"type": kind, "name": name},
                "created": f"2026-01-01T00:00:0{id}Z",
                "input": given,
                "output": output,
            }
            for id, kind, name, given, output in (
                ("0", "task", "chat", ASKED, TOLD),
                ("1", "llm", "chat", CHAT[:1], [{"message": CHAT[1]}]),
                ("2", "tool", "get_order", {"id": 17}, "shipped"),
                ("3", "llm", "chat", CHAT[:3], [{"message": CHAT[3]}]),
            )
        ],
    ),
    Session(
        "W&B Weave: calls",
        BEFORE_UNKNOWN,
        Lines(
            [
                {
                    "id": at,
                    "trace_id": "w",
                    "thread_id": "s",
                    "op_name": "weave:///e/p/op/openai.chat.completions.create:x",
                    "started_at": f"2026-01-01T00:00:0{at}Z",
                    "inputs": {"model": "m", "messages": given},
                    "output": {"choices": [{"message": output}]},
                }
                for at, given, output in ((1, CHAT[:1], CHAT[1]), (2, CHAT[:3], CHAT[3]))
            ]
        ),
        name="a.jsonl",
    ),
    Session(
        "MLflow: traces",
        BEFORE_UNKNOWN,
        {
            "info": {"trace_id": "t", "state": "OK"},
            "data": {
                "spans": [
                    {
                        "trace_id": "t",
                        "name": "Completions",
                        "start_time_unix_nano": at,
                        "attributes": {
                            "mlflow.spanType": '"CHAT_MODEL"',
                            "mlflow.spanInputs": json.dumps({"messages": given}),
                            "mlflow.spanOutputs": json.dumps({"choices": [{"message": output}]}),
                        },
                    }
                    for at, given, output in ((1, CHAT[:1], CHAT[1]), (2, CHAT[:3], CHAT[3]))
                ]
            },
        },
    ),
    Session(
        "Opik: spans",
        BEFORE_UNKNOWN,
        [
            {
                "trace_id": "t",
                **span("llm", "chat", {"messages": CHAT[:1]}, {"choices": [{"message": CHAT[1]}]}, 1),
            },
            {"trace_id": "t", **span("tool", "get_order", {"id": 17}, {"output": "shipped"}, 2)},
            {
                "trace_id": "t",
                **span("llm", "chat", {"messages": CHAT[:3]}, {"choices": [{"message": CHAT[3]}]}, 3),
            },
        ],
    ),
    Session(
        "OpenTelemetry GenAI 2026: messages with parts, instructions apart",
        "right",
        {
            "resourceSpans": [
                {
                    "scopeSpans": [
                        {
                            "spans": [
                                {
                                    "traceId": "t",
                                    "startTimeUnixNano": str(at),
                                    "attributes": [
                                        {"key": key, "value": {"stringValue": value}}
                                        for key, value in (
                                            ("gen_ai.conversation.id", "s"),
                                            (
                                                "gen_ai.system_instructions",
                                                '[{"type": "text", "content": "Help."}]',
                                            ),
                                            ("gen_ai.input.messages", json.dumps(GEN_AI[: 2 * at - 1])),
                                            ("gen_ai.output.messages", json.dumps([GEN_AI[2 * at - 1]])),
                                        )
                                    ],
                                }
                                for at in (1, 2)
                            ]
                        }
                    ]
                }
            ]
        },
    ),
    Session(
        "Traceloop: numbered attributes of a span",
        "refused: no messages",
        [
            {
                "trace_id": "t",
                "attributes": {
                    "gen_ai.prompt.0.role": "user",
                    "gen_ai.prompt.0.content": ASKED,
                    "gen_ai.completion.0.role": "assistant",
                    "gen_ai.completion.0.tool_calls.0.id": "c",
                    "gen_ai.completion.0.tool_calls.0.name": "get_order",
                    "gen_ai.completion.0.tool_calls.0.arguments": ARGS,
                },
            },
            {
                "trace_id": "t",
                "attributes": {
                    "gen_ai.prompt.0.role": "user",
                    "gen_ai.prompt.0.content": ASKED,
                    "gen_ai.prompt.1.role": "assistant",
                    "gen_ai.prompt.1.tool_calls.0.id": "c",
                    "gen_ai.prompt.1.tool_calls.0.name": "get_order",
                    "gen_ai.prompt.1.tool_calls.0.arguments": ARGS,
                    "gen_ai.prompt.2.role": "tool",
                    "gen_ai.prompt.2.content": "shipped",
                    "gen_ai.prompt.2.tool_call_id": "c",
                    "gen_ai.completion.0.role": "assistant",
                    "gen_ai.completion.0.content": TOLD,
                },
            },
        ],
    ),
    Session(
        "AgentCore: log records in CloudWatch, with body.input and body.output",
        BEFORE_UNKNOWN,
        Lines(
            [
                {
                    "resource": {},
                    "timeUnixNano": 1,
                    "traceId": "t",
                    "spanId": "1",
                    "attributes": {"event.name": "strands.telemetry.tracer", "session.id": "s"},
                    "body": {
                        "input": {"messages": [{"role": "user", "content": {"content": ASKED}}]},
                        "output": {"messages": [{"role": "assistant", "content": {"message": TOLD}}]},
                    },
                }
            ]
        ),
        PLAIN,
        name="a.jsonl",
    ),
    # What cannot be read
    Session(
        "MCP inspector: a log of JSON-RPC messages",
        "refused",
        [
            {
                "jsonrpc": "2.0",
                "id": 1,
                "method": "tools/call",
                "params": {"name": "get_order", "arguments": {}},
            },
            {"jsonrpc": "2.0", "id": 1, "result": {"content": [text("shipped")]}},
        ],
        (),
        "no session with a user's message",
    ),
    Session(
        "SWE-agent: .traj files, whose results name their calls in a list",
        "the results were left out",
        {
            "environment": "main",
            "trajectory": [{"action": "ls", "observation": "a"}],
            "history": [
                {"role": "system", "content": "You help.", "agent": "main"},
                {"role": "user", "content": ASKED, "agent": "main"},
                {"role": "assistant", "content": "", "agent": "main", "tool_calls": [CHAT_CALL]},
                {"role": "tool", "content": "shipped", "agent": "main", "tool_call_ids": ["c"]},
                {"role": "assistant", "content": TOLD, "agent": "main"},
            ],
            "info": {},
        },
        told="`history`",
    ),
    Session(
        "LLaMA-Factory: rows of glaive_toolcall, with calls as JSON texts",
        "all rows were one session, and the calls had no name",
        [
            {
                "conversations": [
                    {"from": "human", "value": ASKED},
                    {
                        "from": "function_call",
                        "value": json.dumps({"name": "get_order", "arguments": {"id": 17}}),
                    },
                    {"from": "observation", "value": "shipped"},
                    {"from": "gpt", "value": TOLD},
                ],
                "tools": json.dumps([{"name": "get_order"}]),
            }
        ],
        told="read 1 `conversations` records",
    ),
    Session(
        "LLaMA-Factory: v1_sft_demo.jsonl, whose parts have values",
        "the user's texts were left out",
        Lines(
            [
                {
                    "messages": [
                        {"role": "user", "content": [{"type": "text", "value": ASKED}]},
                        {
                            "role": "assistant",
                            "content": [
                                {"type": "reasoning", "value": "Hm"},
                                {
                                    "type": "tool_call",
                                    "value": json.dumps({"name": "get_order", "arguments": {"id": 17}}),
                                },
                            ],
                        },
                        {"role": "tool", "content": [{"type": "text", "value": "shipped"}]},
                        {"role": "assistant", "content": [{"type": "text", "value": TOLD}]},
                    ],
                    "tools": [{"type": "function", "function": {"name": f"t{n}"}} for n in range(9)],
                }
            ]
        ),
        name="a.jsonl",
    ),
    Session(
        "hh-rlhf and DPO: rows with replies to compare",
        "the list was read as a session",
        Lines([{"chosen_messages": CHAT, "rejected_messages": CHAT}]),
        (),
        "1 with chosen_messages, rejected_messages",
        name="a.jsonl",
    ),
    Session(
        "Codex CLI: instructions of AGENTS.md",
        "read as a message of the user",
        Lines(
            [
                codex("session_meta", id="s", cwd="/", cli_version="0.98.0"),
                said("user", "# AGENTS.md instructions for /\n\n<INSTRUCTIONS>\nBe brief.\n</INSTRUCTIONS>"),
                said("user", ASKED),
                said("assistant", TOLD),
            ]
        ),
        PLAIN,
        "1 × text that the agent's program wrote as the user",
        name="rollout-1.jsonl",
    ),
    Session(
        "a chat whose user writes <INSTRUCTIONS>",
        "the message was dropped",
        {
            "messages": [
                {"role": "user", "content": "<INSTRUCTIONS>Find 17"},
                {"role": "assistant", "content": TOLD},
            ]
        },
        ("<INSTRUCTIONS>Find 17", TOLD),
    ),
    Session(
        "ours, speakers with names of their own",
        "refused without the speakers",
        {"messages": [{"speaker": "Ann", "text": ASKED}, {"speaker": "Shop", "text": TOLD}]},
        (),
        "1 × message of unknown role (Ann)",
    ),
)


def steps_of(conversation: Conversation) -> tuple[str, ...]:
    found: list[str] = []
    for turn in conversation.turns:
        calls = [f"call {call.name} {call.args} → {call.result}" for call in turn.tool_calls]
        found += [turn.user_message, *calls, *filter(None, [turn.agent_message])]
    return tuple(found)


@pytest.mark.parametrize("session", LOG, ids=[each.source for each in LOG])
def test_public_sessions(tmp_path: Path, session: Session) -> None:
    """The file has one conversation with these steps, or is refused with these words."""
    content = session.content
    if isinstance(content, Lines):
        content = "".join(f"{json.dumps(row)}\n" for row in content)
    elif not isinstance(content, str):
        content = json.dumps(content)
    path = tmp_path / session.name
    path.write_text(content, encoding="utf-8")
    if not session.steps:
        with pytest.raises(UsageError, match=re.escape(session.told)):
            recorded_conversations([path], None)
        return
    conversations, notes = recorded_conversations([path], None)
    assert [steps_of(each) for each in conversations] == [session.steps]
    assert session.told in "; ".join(notes)


def test_each_row_is_a_session(tmp_path: Path) -> None:
    """Rows of ShareGPT's form with ids, which were one session, and a list of messages, which is one."""
    path = tmp_path / "a.json"
    talk = [{"from": "human", "value": ASKED}, {"from": "gpt", "value": TOLD}]
    for content, number in (([{"id": n, "conversations": talk} for n in range(2)], 2), ({"data": talk}, 1)):
        path.write_text(json.dumps(content), encoding="utf-8")
        conversations, _ = recorded_conversations([path], None)
        assert list(map(steps_of, conversations)) == [PLAIN] * number


def test_unread_records_are_errored(tmp_path: Path) -> None:
    """Broken lines and records of unknown form, but not events of a log that say nothing."""
    path = tmp_path / "a.jsonl"
    whole = json.dumps({"session_id": "s", "messages": CHAT})
    for line, told in (
        ('{"mess', "left out 1 broken line: "),
        ('{"x": 1}', "left out 1 record of unknown form: 1 with x"),
        ('{"type": "tool_execution", "x": 1}', "left out 1 record of unknown form: 1 with type, x"),
        ('{"type": "ToolExecution", "x": 1}', "left out 1 record of unknown form: 1 with type, x"),
        ('{"type": "function_invocation", "x": 1}', "left out 1 record of unknown form: 1 with type, x"),
        ('{"type": "assistant", "content": ""}', ""),
        ('{"type": "summary", "leafUuid": "x"}', ""),
        ('{"type": "turn.completed", "usage": {"input_tokens": 1}}', ""),
        ('{"type": "file-history-snapshot", "x": 1}', ""),
    ):
        path.write_text(f"{whole}\n{line}\n", encoding="utf-8")
        conversations, _ = recorded_conversations([path], None)
        problems = [each.failure.message for each in conversations if each.failure]
        assert len(problems) == bool(told), line
        assert not told or told in problems[0]


@pytest.mark.parametrize("at_once", [False, True])
def test_calls_whose_ids_repeat_have_results_of_their_own(at_once: bool, tmp_path: Path) -> None:
    """Some servers number the calls of each answer from 0, or give all of them one id."""
    made = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    calls = [{"role": "assistant", "content": None, "tool_calls": made}] * 3
    results = [{"role": "tool", "tool_call_id": "c", "content": text} for text in ("first", "second")]
    one_by_one = [calls[0], results[0], calls[1], results[1], calls[2]]
    messages = [
        CHAT[0],
        *([*calls, *results] if at_once else one_by_one),
        {"role": "assistant", "content": TOLD},
    ]
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"session_id": "s", "messages": messages}), encoding="utf-8")
    (conversation,), notes = recorded_conversations([path], None)
    given = [call.result for turn in conversation.turns for call in turn.tool_calls]
    assert given == ["first", "second", None]
    assert "1 call had no recorded result" in notes


def test_speakers_get_the_roles_that_the_command_gives(tmp_path: Path) -> None:
    """The messages of a name are left out and listed until the command says whose they are."""
    path = tmp_path / "talk.json"
    path.write_text(json.dumps(LOG[-1].content), encoding="utf-8")
    named = ("--column", "user=Ann", "--column", "assistant=Shop")
    done = CliRunner().invoke(import_, [str(path), *named], standalone_mode=False)
    assert "read 'Ann' as the user, 'Shop' as the assistant; --column ROLE=WORD changes one" in done.stderr
    conversations, _ = recorded_conversations([path], None, named[1::2])
    assert list(map(steps_of, conversations)) == [PLAIN]
    (scenario,) = discover_file(tmp_path / "talk.sim.py", Imports()).scenarios
    assert [turn.user_message for turn in scenario.turns] == [ASKED]
    done = CliRunner().invoke(import_, [str(path), "--column", "turn=Ann"], standalone_mode=False)
    assert "write user=NAME or assistant=NAME" in f"{done.stderr}{done.exception}"
