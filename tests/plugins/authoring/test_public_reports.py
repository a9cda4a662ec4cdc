"""A log of public reports and files: what `agentest import` made of each before and makes of it now.

The content is ours: the smallest file of the same shape. Each row is a test of its value.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

from agentest.domain.messages import AgentMessage, ToolResult, UserText
from agentest.plugins.authoring.commands.row_import import import_
from agentest.plugins.authoring.scenario_files import as_data
from agentest.scenarios.discovery import discover_file
from agentest.scenarios.model import Scenario
from agentest.support.importing import Imports


class Report(NamedTuple):
    """A public report or file, what happened with it, and what must happen."""

    source: str  # repository and issue, or repository and file
    kind: str
    before: str
    after: str
    name: str  # of our file of this shape
    content: str | bytes
    value: tuple[Any, ...]  # for each scenario, what `seen` returns of the keys that count; () if refused
    told: str = ""  # a part of what the command prints


def rows(*each: Any) -> str:
    return "".join(f"{json.dumps(row)}\n" for row in each)


def says(text: str) -> dict[str, Any]:
    return {"says": {"text": text, "ignore_case": True}}


RIGHT = "right"
ANSWER = {"turns": ["Where is it?"], "expect": [says("Here")]}
TALKED = ({"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"})
ORDER = {"name": "get_order", "args": {"id": 17}}
TALK = {
    "turns": ["And the refund?"],
    "history": ["user: Where is 17?", "call: get_order", "result: shipped", "assistant: On its way."],
    "expect": [says("no")],
}


def talk(*steps: Any) -> str:
    first, last = {"role": "user", "content": "Where is 17?"}, {"role": "user", "content": "And the refund?"}
    return json.dumps([{"messages": [first, *steps, last], "answer": "no"}])


def span(operation: str, **attributes: Any) -> dict[str, Any]:
    named = {"gen_ai.operation.name": operation, "gen_ai.conversation.id": "s"}
    return {
        "trace_id": "t",
        "name": operation,
        "attributes": {**named, **attributes},
        "status": {"code": "OK"},
    }


ASKED = [{"role": "user", "parts": [{"type": "text", "content": "Where is it?"}]}]
CALLS = [
    {"role": "assistant", "parts": [{"type": "tool_call", "id": "c", "name": "look", "arguments": {"at": 1}}]}
]
CALLED = {"gen_ai.output.messages": CALLS}
TOLD = [{"role": "assistant", "parts": [{"type": "text", "content": "Here"}]}]

LOG = (
    # Tables
    Report(
        "promptfoo/promptfoo#2230",
        "a byte order mark of Excel",
        RIGHT,
        RIGHT,
        "a.csv",
        "\ufeffquestion,answer\nWhere is it?,Here\n",
        (ANSWER,),
    ),
    Report(
        "adaltas/node-csv-parse#284",
        "UTF-16, as Excel's Unicode text",
        "refused as no UTF-8",
        "read",
        "a.csv",
        "question\tanswer\r\nWhere is it?\tHere\r\n".encode("utf-16"),
        (ANSWER,),
    ),
    Report(
        "promptfoo/promptfoo#2294",
        "another delimiter",
        "one column `question|answer`, refused",
        "read",
        "a.csv",
        "question|answer\nWhere is it?|Here\n",
        (ANSWER,),
    ),
    Report(
        "CartoDB/cartodb#2641",
        "a quoted header with the other delimiter",
        "the CSV does not parse",
        "read",
        "a.csv",
        'id;"what, when, where";question;answer\n1;;Where is it?;Here\n',
        (ANSWER,),
    ),
    Report(
        "proompteng/bilig#364",
        "quoted semicolons, decimal commas",
        RIGHT,
        RIGHT,
        "a.csv",
        'question;answer\n"Net; or gross?";1,50\n',
        ({"turns": ["Net; or gross?"], "expect": [says("1,50")]},),
    ),
    Report(
        "cldf/csvw#69",
        "a cell of 150,000 characters",
        "field larger than field limit",
        "read",
        "a.csv",
        f"question,answer,log\nWhere is it?,Here,{'x' * 150_000}\n",
        (ANSWER,),
    ),
    Report(
        "promptfoo/promptfoo#3069",
        "JSON in a cell without quotes around it",
        RIGHT,
        RIGHT,
        "a.csv",
        'question,expected\nWhere is it?,{"answer": "Here"}\n',
        (ANSWER,),
    ),
    Report(
        "explodinggradients/ragas:examples/ragas_examples/improve_rag/datasets/hf_doc_qa_eval.csv",
        "a column without a name",
        "refused",
        "read, listed as unused",
        "a.csv",
        "question,expected_answer,\nWhere is it?,Here,\n",
        (ANSWER,),
        "not used: 'column 3'",
    ),
    Report(
        "vibrantlabsai/ragas#191",
        "values of Python in cells, as pandas writes them",
        "refused",
        "read",
        "a.csv",
        "inputs,expectations\n\"{'question': 'Where is it?'}\",\"{'expected_response': 'Here'}\"\n",
        (ANSWER,),
        "an evaluation dataset of MLflow",
    ),
    Report(
        "ours, after vibrantlabsai/ragas#191",
        "cells that only look like values of Python",
        "an unexpected error",
        "texts",
        "a.csv",
        "question,answer\n{{1}},Here\n{1},Here\n[b'x'],Here\n",
        tuple({**ANSWER, "turns": [each]} for each in ("{{1}}", "{1}", "[b'x']")),
    ),
    Report(
        "ours, after langchain-ai/langsmith-sdk#1789",
        "columns of another tool that are named like options",
        "`tools` was read as an option, and refused",
        "read, listed as unused",
        "a.csv",
        "question,answer,outputs,tools,skip\nWhere is it?,Here,x,calc,no\n",
        (ANSWER,),
        "not used: 'outputs', 'tools', 'skip'",
    ),
    Report(
        "ours, after promptfoo/promptfoo#3069",
        "columns that are named like options",
        "used, but not listed",
        "listed",
        "a.csv",
        "question,answer,max_turns\nWhere is it?,Here,3\n",
        (ANSWER,),
        "options: max_turns",
    ),
    Report(
        "langfuse/langfuse#8910",
        "JSON in cells",
        RIGHT,
        RIGHT,
        "a.csv",
        'input,expected_output\n"{""question"": ""Where is it?""}",Here\n',
        (ANSWER,),
    ),
    Report(
        "langchain-ai/langsmith-sdk#1789",
        "columns `input_…` and `output_…`",
        "refused",
        "read",
        "a.csv",
        "input_question,output_answer\nWhere is it?,Here\n",
        (ANSWER,),
    ),
    Report(
        "codeforequity-at/botium-core:test/compiler/convos/csv/convos_column_me_bot.csv",
        "columns `user` and `bot`",
        "`bot` was not used",
        "the expected answer",
        "a.csv",
        "user,bot\nWhere is it?,Here\n",
        (ANSWER,),
    ),
    Report(
        "confident-ai/deepeval#2564",
        "calls as JSON in a cell of goldens",
        RIGHT,
        RIGHT,
        "a.csv",
        'input,expected_tools\nWhere is it?,"[{""name"": ""get_order"",'
        ' ""input_parameters"": {""id"": 17}}]"\n',
        ({"turns": ["Where is it?"], "trajectory": [{"expected": [ORDER], "match_mode": "contains"}]},),
    ),
    # JSON
    Report(
        "ShishirPatil/gorilla:berkeley-function-call-leaderboard/bfcl_eval/data/BFCL_v4_multi_turn_base.json",
        "JSON Lines named .json, a list of messages for each turn",
        "refused: Extra data",
        "a script",
        "a.json",
        rows({"id": "m0", "question": [[{"role": "user", "content": each}] for each in "ab"]}) * 2,
        ({"turns": ["a", "b"]},) * 2,
    ),
    Report(
        "openai/evals:evals/registry/data/ab/samples.jsonl",
        "a pointer of Git LFS",
        "refused: Expecting value",
        "refused: how to get the file",
        "a.jsonl",
        "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n",
        (),
        "git lfs pull",
    ),
    Report(
        "wandb/rai-toolkit#88",
        "a broken line",
        RIGHT,
        RIGHT,
        "a.jsonl",
        rows({"question": "a", "answer": "b"}) + '{"question": "c"\n',
        (),
        "a.jsonl:2: the JSON",
    ),
    Report(
        "huggingface/datasets#6695",
        "a list of texts",
        RIGHT,
        RIGHT,
        "a.json",
        '["Where is it?"]',
        (),
        "row 1: expected a dict from column to value",
    ),
    Report(
        "sierra-research/tau2-bench:data/tau2/domains/banking_knowledge/tasks/task_001.json",
        "one case in a file",
        "refused: no list of cases",
        "a scenario",
        "a.json",
        json.dumps(
            {
                "id": "t1",
                "user_scenario": {"instructions": "Ask for a card."},
                "evaluation_criteria": {"actions": [{"name": "apply"}]},
            }
        ),
        ({"name": "t1", "goal": "Ask for a card."},),
        "read as tau2 tasks",
    ),
    Report(
        "sierra-research/tau2-bench:data/tau2/domains/banking_knowledge/tasks.json",
        "a column of the tool, `user_tools`, that is named like an option",
        "all 97 tasks invalid",
        "read",
        "a.json",
        json.dumps(
            [
                {
                    "id": "t1",
                    "user_tools": ["apply"],
                    "user_scenario": {"instructions": "Ask."},
                    "evaluation_criteria": {"actions": [{"name": "apply", "arguments": {}}]},
                }
            ]
        ),
        ({"name": "t1", "goal": "Ask."},),
        "not used: 'user_tools'",
    ),
    Report(
        "Azure/azure-sdk-for-python#42752",
        "`query`, `response` and `ground_truth`",
        "no session was found: taken for a log of the OpenAI API",
        "the truth is expected",
        "a.jsonl",
        rows({"query": "Where is it?", "response": "There", "ground_truth": "Here"}),
        (ANSWER,),
    ),
    Report(
        "langchain-ai/langsmith-docs#840",
        "examples with `inputs` and `outputs`",
        RIGHT,
        RIGHT,
        "a.jsonl",
        rows({"inputs": {"question": "Where is it?"}, "outputs": {"answer": "Here"}}),
        (ANSWER,),
        "read as LangSmith examples",
    ),
    Report(
        "UKGovernmentBEIS/inspect_ai:src/inspect_ai/dataset/_examples/theory_of_mind.jsonl",
        "samples with `input` and `target`",
        RIGHT,
        RIGHT,
        "a.jsonl",
        rows({"input": "Where is it?", "target": "Here"}),
        (ANSWER,),
    ),
    # Messages
    Report(
        "langchain-ai/langchain#11458",
        "messages of LangChain",
        "unknown key `lc`",
        "the user's message",
        "a.jsonl",
        rows(
            {
                "inputs": {
                    "messages": [
                        {
                            "lc": 1,
                            "type": "constructor",
                            "id": ["langchain", "HumanMessage"],
                            "kwargs": {"content": "Where is it?"},
                        }
                    ]
                },
                "outputs": {"output": "Here"},
            }
        ),
        (ANSWER,),
    ),
    Report(
        "lm-sys/FastChat:data/dummy_conversation.json",
        "`from` and `value` of ShareGPT",
        "refused",
        "history, the last message, and the expected reply",
        "a.json",
        json.dumps(
            [
                {
                    "id": "i",
                    "conversations": [
                        {"from": "human", "value": "Hi"},
                        {"from": "gpt", "value": "Hello"},
                        {"from": "human", "value": "Where is it?"},
                        {"from": "gpt", "value": "Here"},
                    ],
                }
            ]
        ),
        ({**ANSWER, "history": ["user: Hi", "assistant: Hello"]},),
    ),
    Report(
        "modelscope/evalscope#1309",
        "a conversation in each line, as a list",
        "one session of all lines",
        "a session of each",
        "a.jsonl",
        rows(
            [{"role": "user", "content": "Where is my order?"}, {"role": "assistant", "content": "Here"}],
            [{"role": "user", "content": "Please cancel everything"}, {"role": "assistant", "content": "No"}],
        ),
        ({"turns": ["Please cancel everything"]},),
        "1 scenario from 2 sessions",
    ),
    Report(
        "laravel/ai#203",
        "calls of chat completions before the question",
        "the answer was dropped",
        "history",
        "a.json",
        talk(
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "c", "function": {"name": "get_order", "arguments": '{"id": 17}'}}],
            },
            {"role": "tool", "tool_call_id": "c", "content": "shipped"},
            {"role": "assistant", "content": "On its way."},
        ),
        (TALK,),
    ),
    Report(
        "Podden/openwebui_anthropic_api_manifold_pipe#30",
        "calls of Anthropic's Messages",
        "the answer was dropped",
        "history",
        "a.json",
        talk(
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "t", "name": "get_order", "input": {"id": 17}}],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "shipped"}]},
            {"role": "assistant", "content": [{"type": "text", "text": "On its way."}]},
        ),
        (TALK,),
    ),
    Report(
        "amd/gaia#3997",
        "calls of Responses",
        "the calls were left out",
        "history",
        "a.json",
        talk(
            {"type": "function_call", "call_id": "c", "name": "get_order", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "shipped"},
            {"role": "assistant", "content": "On its way."},
        ),
        (TALK,),
    ),
    Report(
        "latitude-dev/latitude-llm#680",
        "calls of Gemini, without ids",
        "the answer was dropped",
        "history",
        "a.json",
        talk(
            {"role": "model", "parts": [{"functionCall": {"name": "get_order", "args": {}}}]},
            {"role": "user", "parts": [{"functionResponse": {"name": "get_order", "response": "shipped"}}]},
            {"role": "model", "parts": [{"text": "On its way."}]},
        ),
        (TALK,),
    ),
    Report(
        "UKGovernmentBEIS/inspect_ai:examples/images/images.jsonl",
        "a picture in the message",
        "dropped without a word",
        "dropped and counted",
        "a.jsonl",
        rows(
            {
                "input": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "text", "text": "Where is it?"},
                            {"type": "image", "image": "a.png"},
                        ],
                    }
                ],
                "target": "Here",
            }
        ),
        (ANSWER,),
        "left out 1 × part of a user's message that is not text (image)",
    ),
    # Suites
    Report(
        "promptfoo/promptfoo#606",
        "a prompt with variables",
        "the first variable alone was sent",
        "the prompt",
        "a.yaml",
        'prompts: ["Where is {{what}} in {{place}}?"]\ntests:\n'
        "  - vars: {what: Rome, place: Italy}\n    assert: [{type: icontains, value: here}]\n",
        ({"turns": ["Where is Rome in Italy?"], "expect": [says("here")]},),
    ),
    Report(
        "promptfoo/promptfoo#475",
        "a variable with several values",
        "turns of one conversation",
        "tests",
        "a.yaml",
        'tests:\n  - vars: {question: ["a?", "b?"]}\n    assert: [{type: icontains, value: c}]\n',
        ({"turns": ["a?"], "expect": [says("c")]}, {"turns": ["b?"], "expect": [says("c")]}),
    ),
    Report(
        "promptfoo/promptfoo#7141",
        "a variable whose values belong together",
        "turns of one conversation",
        "one test",
        "a.yaml",
        'prompts: ["What is made of {{parts}}?"]\ndefaultTest: {options: {disableVarExpansion: true}}\n'
        "tests:\n  - vars: {parts: [egg, flour]}\n    assert: [{type: icontains, value: cake}]\n",
        ({"turns": ['What is made of ["egg", "flour"]?'], "expect": [says("cake")]},),
    ),
    Report(
        "promptfoo/promptfoo#415",
        "a variable in an assertion",
        "left out",
        "filled in",
        "a.yaml",
        'tests:\n  - vars: {question: "Where is it?", place: Here}\n'
        '    assert: [{type: icontains, value: "{{place}}"}]\n',
        (ANSWER,),
    ),
    Report(
        "promptfoo/promptfoo#6655",
        "assertions of `defaultTest`",
        "not used",
        "expected of each test",
        "a.yaml",
        "defaultTest: {assert: [{type: icontains, value: Here}]}\n"
        'tests:\n  - vars: {question: "Where is it?"}\n',
        (ANSWER,),
    ),
    Report(
        "promptfoo/promptfoo#520",
        "tests in another file",
        "refused",
        "read",
        "a.yaml",
        'prompts: ["Where is {{what}}?"]\ntests: file://b.csv\n',
        (
            {
                "turns": ["Where is it?"],
                "expect": [{"says": {"regex": r"^\s*Here\s*$"}}],
            },
        ),
    ),
    Report(
        "promptfoo/promptfoo#2174",
        "a date without quotes in YAML",
        RIGHT,
        RIGHT,
        "a.yaml",
        'tests:\n  - vars: {question: "When?"}\n    assert: [{type: icontains, value: 2024-05-01}]\n',
        ({"turns": ["When?"], "expect": [says("2024-05-01")]},),
    ),
    Report(
        "OpenCageData/address-formatting#27",
        "NO without quotes in YAML",
        "`false` was expected",
        "`NO` is",
        "a.yaml",
        'tests:\n  - vars: {question: "Which?"}\n    assert: [{type: icontains, value: NO}]\n',
        ({"turns": ["Which?"], "expect": [says("NO")]},),
    ),
    Report(
        "livekit/agents:examples/hotel_receptionist/scenarios.yaml",
        "scenarios with labels",
        "named `row 1`",
        "named by the label",
        "a.yaml",
        "scenarios:\n  - {label: late guest, instructions: Ask., agent_expectations: Helps.}\n",
        ({"name": "late guest", "goal": "Ask.", "expected_outcome": "Helps."},),
        "read as LiveKit scenarios",
    ),
    Report(
        "codeforequity-at/botium-bindings:samples/hello/spec/convo/shopping_cart.convo.txt",
        "a convo with asserters",
        "refused",
        "a script; asserters are listed",
        "a.convo.txt",
        "the cart\n\n#me\nadd a lamp\n\n#bot\nINTENT add\n\n#me\nshow\n\n#bot\nIn your cart:\na lamp\n",
        (
            {
                "name": "the cart",
                "turns": ["add a lamp", "show"],
                "expect": [
                    {"says": {"regex": r"In\s+your\s+cart:\s+a\s+lamp", "ignore_case": True}, "in_turn": 1}
                ],
            },
        ),
        "left out of a.convo.txt: INTENT add",
    ),
    Report(
        "codeforequity-at/botium-core:samples/scripting/convofiles/convos/memory/restaurant.convo.txt",
        "variables, wildcards and `!` in replies",
        "refused",
        "patterns, and what is never said",
        "a.convo.txt",
        "#begin\nPAUSE 10\n\n#me\nhungry\n\n#bot\nI found $count places for *\n\n#bot\n!sorry\n",
        (
            {
                "name": "a.convo",
                "turns": ["hungry"],
                "expect": [
                    {
                        "says": {"regex": r"I\s+found\s+.*\s+places\s+for\s+.*", "ignore_case": True},
                        "in_turn": 0,
                    },
                    {"never_says": {"regex": "sorry", "ignore_case": True}, "in_turn": 0},
                ],
            },
        ),
        "left out of a.convo.txt: PAUSE 10",
    ),
    # Further files
    Report(
        "microsoft/CopilotStudioSamples:EmployeeSelfServiceAgent/ESSEvaluationSamples/StarterTestSets/Workday.csv",
        "a spreadsheet's byte order mark, and a space after a column's name",
        RIGHT,
        RIGHT,
        "a.csv",
        "\ufeffPrompt,Expected response ,Test Method Type,Passing Score\n"
        "Where is it?,Here,CompareMeaning,70\n",
        (ANSWER,),
        "not used: 'Test Method Type', 'Passing Score'",
    ),
    Report(
        "Azure-Samples/azureai-samples:scenarios/rag/custom-rag-app/assets/chat_eval_data.jsonl",
        "`truth`",
        "no expected answer",
        "expected",
        "a.jsonl",
        rows({"query": "Where is it?", "truth": "Here"}),
        (ANSWER,),
    ),
    Report(
        "Azure-Samples/azureai-samples:scenarios/evaluate/Azure_OpenAI_Graders/data.jsonl",
        "a JSON list named .jsonl",
        "refused: the JSON does not parse",
        "read",
        "a.jsonl",
        json.dumps([{"query": "Where is it?", "ground_truth": "Here"}], indent=1),
        (ANSWER,),
    ),
    Report(
        "Azure-Samples/azureai-samples:scenarios/evaluate/Supported_Evaluation_Metrics/Agent_Evaluation/"
        "evaluation_data.jsonl",
        "messages in `query` and `response`",
        "no session was found",
        "a session",
        "a.jsonl",
        rows(
            {
                "query": [{"role": "user", "content": "Where is it?"}],
                "response": [
                    {
                        "role": "assistant",
                        "content": [
                            {"type": "tool_call", "tool_call_id": "c", "name": "look", "arguments": {"at": 1}}
                        ],
                    },
                    {"role": "assistant", "content": [{"type": "text", "text": "Here"}]},
                ],
            }
        ),
        ({"turns": ["Where is it?"]},),
        "read 1 openai records",
    ),
    Report(
        "braintrustdata/braintrust-cookbook:examples/ModelComparison/assets/dataset.json",
        "rows as the viewer of Hugging Face downloads them",
        "refused",
        "read",
        "a.json",
        json.dumps(
            {
                "features": [{"name": "question"}],
                "rows": [
                    {"row_idx": 0, "row": {"question": "Where is it?", "answer": "Here"}},
                    {"row_idx": 1, "row": {"question": "Where is it?", "answer": "Here"}},
                ],
            }
        ),
        (ANSWER, ANSWER),
        "only `rows` of a.json is read; not used: 'features'",
    ),
    Report(
        "braintrustdata/braintrust-cookbook:examples/LLaMa-3_1-Tools/coqa-factuality.json",
        "an input that is an object with an expected answer",
        RIGHT,
        RIGHT,
        "a.json",
        json.dumps([{"input": {"input": "Where is it?", "expected": "Here"}, "expected": 1}]),
        (ANSWER,),
        "not used: 'expected'",
    ),
    Report(
        "microsoft/skills-for-copilot-studio:evals/scenarios/eval-test-set.json",
        "a list of cases under a name of its own",
        "refused",
        "read",
        "a.json",
        json.dumps({"scenario_name": "x", "evals": [{"name": "n", "prompt": "Where is it?", "checks": {}}]}),
        ({"name": "n", "turns": ["Where is it?"]},),
        "only `evals` of a.json is read; not used: 'scenario_name'",
    ),
    Report(
        "Arize-ai/phoenix:.agents/skills/phoenix-skills-audit/evals/evals.json",
        "a list of cases with an outcome in words",
        "refused",
        "the expected outcome",
        "a.json",
        json.dumps(
            {"skill_name": "x", "evals": [{"id": 0, "prompt": "Audit.", "expected_output": "y" * 70}]}
        ),
        ({"turns": ["Audit."], "expected_outcome": f"The agent's answer means: {'y' * 70}"},),
    ),
    Report(
        "Arize-ai/phoenix:evals/pxi/datasets/debug_trace_skill_trigger.yaml",
        "tools that are required",
        "not used",
        "expected calls",
        "a.yaml",
        "dataset_name: d\nexamples:\n- id: e\n  input: {messages: [{role: user, content: Why}]}\n"
        "  expected: {tools: {required: [look]}}\n",
        (
            {
                "name": "e",
                "turns": ["Why"],
                "trajectory": [{"expected": ["look"], "match_mode": "contains"}],
            },
        ),
    ),
    Report(
        "Arize-ai/phoenix:evals/pxi/datasets/product_knowledge.yaml",
        "texts that a reply must have, some with alternatives",
        "not used",
        "expected",
        "a.yaml",
        "examples:\n- input: {messages: [{role: user, content: How much}]}\n"
        "  expected: {assistant_text: {contains_all: [token, [price, cost]]}}\n",
        (
            {
                "turns": ["How much"],
                "expect": [
                    says("token"),
                    {"says": {"one_of": [says("price")["says"], says("cost")["says"]]}},
                ],
            },
        ),
    ),
    Report(
        "sierra-research/tau-bench:historical_trajectories/gpt-4o-airline.json",
        "tasks within results",
        "the instruction for the simulated user was the message",
        "the goal, expected writes and texts",
        "a.json",
        json.dumps(
            [
                {
                    "task_id": 0,
                    "info": {
                        "task": {
                            "instruction": "You are Ann.",
                            "actions": [{"name": "book", "kwargs": {"id": 1}}],
                            "outputs": ["12"],
                        }
                    },
                    "traj": [],
                }
            ]
        ),
        ({"goal": "You are Ann.", "expect": [says("12")], "turns": []},),
    ),
    Report(
        "pydantic/pydantic-ai:examples/pydantic_ai_examples/evals/datasets/time_range_v1.yaml",
        "an expected output with fields",
        RIGHT,
        RIGHT,
        "a.yaml",
        "cases:\n- name: one day\n  inputs: {prompt: Logs of May 8, now: x}\n"
        "  expected_output: {min: a, max: b}\nevaluators: [x]\n",
        ({"name": "one day", "turns": ["Logs of May 8"]},),
        "not used: 'inputs.now', 'expected_output.min', 'expected_output.max'",
    ),
    Report(
        "salesforcecli/plugin-agent:messages/agent.generate.test-spec.md",
        "specs of Agentforce tests",
        "refused",
        "calls and the outcome",
        "a.yaml",
        "subjectName: Guide\ntestCases:\n- utterance: Is it warm?\n  expectedTopic: Weather\n"
        "  expectedActions: [Check_Weather]\n  expectedOutcome: Tells the temperature.\n",
        (
            {
                "turns": ["Is it warm?"],
                "expected_outcome": "Tells the temperature.",
                "trajectory": [{"expected": ["Check_Weather"], "match_mode": "contains"}],
            },
        ),
        "not used: 'expectedTopic'",
    ),
    Report(
        "salesforcecli/plugin-agent:test/mock-projects/agent-generate-template/force-app/main/default/"
        "aiEvaluationDefinitions/Local_Info_Agent_Test.aiEvaluationDefinition-meta.xml",
        "XML",
        RIGHT,
        RIGHT,
        "a.xml",
        "<AiEvaluationDefinition/>",
        (),
        "has no testCase",
    ),
    Report(
        "GoogleCloudPlatform/generative-ai: datasets of Vertex's agent evaluation",
        "`reference_trajectory` with `tool_name` and `tool_input`",
        "not used",
        "expected calls",
        "a.jsonl",
        rows(
            {
                "prompt": "Where is it?",
                "reference_trajectory": [{"tool_name": "get_order", "tool_input": {"id": 17}}],
            }
        ),
        ({"turns": ["Where is it?"], "trajectory": [{"expected": [ORDER], "match_mode": "contains"}]},),
    ),
    Report(
        "strands-agents/evals:tests/strands_evals/mappers/fixtures/otel_genai_convention_spans.json",
        "spans with events beside their attributes, and the agent's own span",
        "rows, of which most were invalid",
        "a session that says each message once",
        "a.json",
        json.dumps(
            [
                span("invoke_agent", **{"gen_ai.input.messages": ASKED, "gen_ai.output.messages": TOLD}),
                span("chat") | {"span_events": [{"attributes": {"gen_ai.input.messages": ASKED, **CALLED}}]},
                span("chat", **{"gen_ai.input.messages": [*ASKED, *CALLS], "gen_ai.output.messages": TOLD}),
            ]
        ),
        ({"turns": ["Where is it?"]},),
        "read 3 otlp records",
    ),
    Report(
        "strands-agents/evals:tests/strands_evals/mappers/fixtures/pydantic_ai_live_spans.json",
        "results in spans of tools",
        "rows, of which most were invalid",
        "a session with a mock",
        "a.json",
        json.dumps(
            [
                span("chat", **{"gen_ai.input.messages": ASKED, "gen_ai.output.messages": CALLS}),
                span("execute_tool", **{"gen_ai.tool.call.id": "c", "gen_ai.tool.call.result": "Here"}),
            ]
        ),
        ({"turns": ["Where is it?"]},),
        "1 scenario from 1 session",
    ),
    Report(
        "ours, a sheet of manual tests",
        "`Scenario` beside the user's message",
        "the goal of a simulated user; the message was not used",
        "the message",
        "a.csv",
        "Test case ID,Scenario,Steps,User input,Expected result,Answer\n"
        "T1,Late,1. Open,Where is it?,x,Here\n",
        ({**ANSWER, "name": "Test case ID T1"},),
        "not used: 'Scenario', 'Steps', 'Expected result'",
    ),
    Report(
        "ours, after promptfoo/promptfoo#7141",
        "`no` without quotes",
        "counted as true",
        "false",
        "a.yaml",
        "defaultTest: {options: {disableVarExpansion: no}}\n"
        'tests:\n  - vars: {question: ["a?", "b?"]}\n    assert: [{type: icontains, value: c}]\n',
        ({"turns": ["a?"], "expect": [says("c")]}, {"turns": ["b?"], "expect": [says("c")]}),
    ),
    # Scripts with expectations of turns
    Report(
        "ours, after end-to-end tests of Rasa",
        "steps of the user and the bot, with assertions",
        "refused",
        "a script, with what a reply matches; other assertions are counted",
        "a.yml",
        "test_cases:\n- test_case: late\n  steps:\n  - utter: utter_hello\n  - user: Where is it?\n"
        "    assertions:\n    - flow_started: track\n    - bot_uttered: {text_matches: On its (way|road)}\n"
        "  - user: Thanks\n  - utter: utter_bye\n",
        (
            {
                "name": "late",
                "turns": ["Where is it?", "Thanks"],
                "expect": [{"says": {"regex": "On its (way|road)"}, "in_turn": 0}],
            },
        ),
        "left out 1 × assertion flow_started",
    ),
    Report(
        "ours, after stories of Rasa",
        "stories with intents and actions",
        "refused",
        "a script; intents and actions are counted",
        "a.yml",
        "stories:\n- story: late\n  steps:\n  - user: Where is it?\n    intent: track\n"
        "  - action: utter_way\n  - user: Thanks\n    intent: thank\n",
        ({"name": "late", "turns": ["Where is it?", "Thanks"], "expect": []},),
        "left out 2 × `intent` of a turn",
    ),
    Report(
        "ours, after test cases of Dialogflow CX",
        "turns with the agent's replies",
        "refused",
        "a script that expects each reply in its turn",
        "a.json",
        json.dumps(
            {
                "name": "projects/p/t",
                "displayName": "late",
                "tags": ["#x"],
                "testCaseConversationTurns": [
                    {
                        "userInput": {"input": {"text": {"text": "Where is it?"}, "languageCode": "en"}},
                        "virtualAgentOutput": {"textResponses": [{"text": ["Here"]}]},
                    },
                    {
                        "userInput": {"input": {"text": {"text": "Thanks"}}},
                        "virtualAgentOutput": {"textResponses": [{"text": ["Bye"]}]},
                    },
                ],
            }
        ),
        (
            {
                "name": "late",
                "turns": ["Where is it?", "Thanks"],
                "expect": [{**says("Here"), "in_turn": 0}, {**says("Bye"), "in_turn": 1}],
            },
        ),
        "left out 1 × `userInput.input.languageCode` of a turn",
    ),
    Report(
        "ours, after datasets of AgentCore",
        "turns with `input` and `expected_output`",
        "all scenarios invalid",
        "a script that expects each reply in its turn; the judge decides on long ones",
        "a.json",
        json.dumps(
            {
                "scenarios": [
                    {
                        "scenario_id": "late",
                        "turns": [
                            {"input": "Where is it?", "expected_output": "Here"},
                            {"input": "Thanks", "expected_output": "y" * 70},
                        ],
                        "expected_trajectory": {"tool_names": ["get_order"]},
                        "assertions": ["It is polite."],
                    }
                ]
            }
        ),
        (
            {
                "name": "late",
                "turns": ["Where is it?", "Thanks"],
                "expect": [{**says("Here"), "in_turn": 0}],
                "criteria": [f"In turn 2: The agent's answer means: {'y' * 70}", "It is polite."],
                "trajectory": [{"expected": ["get_order"], "match_mode": "contains"}],
            },
        ),
    ),
    Report(
        "ours, steps with calls and a goal",
        "expected tools of each step",
        "refused",
        "calls of the conversation; the user goes on after the script",
        "a.json",
        json.dumps(
            [
                {
                    "goal": "Find order 17.",
                    "turns": [
                        {"bot": "Welcome"},
                        {
                            "input": "Where is it?",
                            "expected_tools": [{"name": "get_order", "args": {"id": 17}}],
                        },
                        {
                            "input": "Thanks",
                            "task": {"actions": [{"name": "close", "arguments": {"id": 17}}]},
                        },
                    ],
                }
            ]
        ),
        (
            {
                "goal": "Find order 17.",
                "turns": ["Where is it?", "Thanks"],
                "is_continued": True,
                "trajectory": [{"expected": [ORDER, {**ORDER, "name": "close"}], "match_mode": "contains"}],
            },
        ),
        "left out 1 × reply before the user's first message",
    ),
    Report(
        "ours, after rubrics of HealthBench",
        "criteria as objects, some with a negative weight",
        "not used",
        "the statements; a negative one is counted",
        "a.jsonl",
        rows(
            {
                "prompt": "Where is it?",
                "rubrics": [
                    {"criterion": "Names the street.", "points": 5},
                    {"criterion": "Names a wrong town.", "points": -5},
                ],
            }
        ),
        ({"turns": ["Where is it?"], "criteria": ["Names the street."]},),
        "left out 1 × criterion with a negative weight",
    ),
    Report(
        "ours, assertions with a type and a value",
        "a list of assertions that are objects and texts",
        "JSON as criteria",
        "checks and criteria; others are counted",
        "a.jsonl",
        rows(
            {
                "prompt": "Where is it?",
                "assertions": [
                    {"type": "icontains", "value": "Here", "description": "Says where."},
                    {"type": "llm-rubric", "value": "It is polite."},
                    {"type": "semantic", "value": "Nearby"},
                    "It is short.",
                    ["It is kind."],
                ],
            }
        ),
        (
            {
                "turns": ["Where is it?"],
                "expect": [says("Here")],
                "criteria": ["It is polite.", "It is short."],
            },
        ),
        "left out 1 × `description` of an assertion\n"
        "agentest: left out 1 × assertion semantic\n"
        "agentest: left out 1 × criterion that is not a text\n",
    ),
    Report(
        "ours, the longest list of objects",
        "two lists under unusual keys",
        "the list that was read was not named",
        "named",
        "a.json",
        json.dumps({"evals": [{"prompt": "Where is it?", "answer": "Here"}], "notes": []}),
        (ANSWER,),
        "the cases of a.json are `evals`, its longest list of cases",
    ),
    Report(
        "ours, a longer list of objects that are no cases",
        "another list has known columns",
        "refused: the longest list was taken",
        "the list with known columns",
        "a.json",
        json.dumps(
            {"colors": [{"hue": 1}, {"hue": 2}], "evals": [{"prompt": "Where is it?", "answer": "Here"}]}
        ),
        (ANSWER,),
        "`evals`, its longest list of cases\nagentest: only `evals` of a.json is read; not used: 'colors'",
    ),
    # What came before
    *(
        Report(
            source,
            f"`{column}` beside the user's message",
            "listed as unused",
            "history",
            "a.json",
            json.dumps([{"question": "Where is it?", column: before, "answer": "Here"}]),
            ({**ANSWER, "history": ["user: Hi", "assistant: Hello"]},),
            f"history: {column}",
        )
        for source, column, before in (
            ("Giskard: test sets", "conversation_history", [*TALKED]),
            ("LangChain: chains with chat_history", "chat_history", [["Hi", "Hello"]]),
            (
                "Agentforce: conversationHistory",
                "conversationHistory",
                [TALKED[0], {"role": "agent", "message": "Hello"}],
            ),
            ("ours, a text of lines", "history", "User: Hi\nBot: Hello"),
        )
    ),
    Report(
        "ours, a table with a row for each turn",
        "rows that name a conversation",
        "a scenario of each turn",
        "a script of each conversation",
        "a.csv",
        "conversation_id,user,expected\na,Hi,Hello\na,Where is it?,Here\nb,When?,Now\n",
        (
            {
                "name": "a",
                "turns": ["Hi", "Where is it?"],
                "expect": [{**says("Hello"), "in_turn": 0}, {**says("Here"), "in_turn": 1}],
            },
            {"name": "b", "turns": ["When?"], "expect": [{**says("Now"), "in_turn": 0}]},
        ),
        "joined 3 rows to 2 conversations",
    ),
    # Suites
    Report(
        "promptfoo: scenarios with config and tests",
        "each configuration with each test",
        "refused",
        "a test of each pair",
        "a.yaml",
        'prompts: ["{{q}}"]\nscenarios:\n  - config: [{vars: {q: "Where is it?"}}, {vars: {q: "When?"}}]\n'
        "    tests: [{assert: [{type: icontains, value: Here}]}]\n",
        (ANSWER, {**ANSWER, "turns": ["When?"]}),
    ),
    Report(
        "promptfoo: _conversation in the prompt, conversationId of tests",
        "tests that are turns of one conversation",
        "refused",
        "a script",
        "a.yaml",
        'prompts: ["{% for c in _conversation %}{{c.input}}{% endfor %}{{q}}"]\ntests:\n'
        '  - {vars: {q: "Hi"}, metadata: {conversationId: a}}\n'
        '  - vars: {q: "Where is it?"}\n    metadata: {conversationId: a}\n'
        "    assert: [{type: icontains, value: Here}]\n",
        ({"turns": ["Hi", "Where is it?"], "expect": [{**says("Here"), "in_turn": 1}]},),
    ),
    Report(
        "promptfoo: assert-set",
        "assertions in sets, one with a threshold",
        "left out",
        "those of sets that must all hold; the other is counted",
        "a.yaml",
        'prompts: ["{{q}}"]\ntests:\n  - vars: {q: "Where is it?"}\n    assert:\n'
        "      - {type: assert-set, assert: [{type: icontains, value: Here}]}\n"
        "      - {type: assert-set, threshold: 0.5, assert: [{type: icontains, value: There}]}\n",
        (ANSWER,),
        "left out 1 × assertion assert-set",
    ),
    Report(
        "ours, assertions of the type rubric",
        "the text under `text` or `criteria`",
        "left out",
        "criteria",
        "a.jsonl",
        rows(
            {
                "prompt": "Where is it?",
                "assertions": [
                    {"type": "rubric", "text": "It is polite."},
                    {"type": "llm_judge", "criteria": "It is short."},
                ],
            }
        ),
        ({"turns": ["Where is it?"], "criteria": ["It is polite.", "It is short."]},),
    ),
    Report(
        "UKGovernmentBEIS/inspect_ai: samples with choices",
        "`choices` beside `input` and `target`",
        "taken for a log of the OpenAI API; the target was lost",
        "the target is expected",
        "a.jsonl",
        rows({"input": "Where is it?", "target": "Here", "choices": ["Here", "There"]}),
        (ANSWER,),
        "not used: 'choices'",
    ),
    Report(
        "confident-ai/deepeval: ConversationalGolden with turns",
        "`toolsCalled` of a turn",
        "lost without a word",
        "an expected call",
        "a.json",
        json.dumps(
            [
                {
                    "scenario": "Ann asks.",
                    "expectedOutcome": "Found",
                    "turns": [
                        {"role": "user", "content": "Where is it?"},
                        {
                            "role": "assistant",
                            "content": "Here",
                            "toolsCalled": [{"name": "get_order", "inputParameters": {"id": 17}}],
                        },
                    ],
                }
            ]
        ),
        (
            {
                "goal": "Ann asks.",
                "turns": ["Where is it?"],
                "trajectory": [{"expected": [ORDER], "match_mode": "contains"}],
            },
        ),
        "left out 1 × expected reply beside an expected outcome",
    ),
    Report(
        "Botpress: conversations with assertions of turns",
        "an assertion as an object",
        "its JSON was expected",
        "the assertion",
        "a.json",
        json.dumps(
            {"turns": [{"user": "Where is it?", "assertions": {"response": [{"icontains": "Here"}]}}]}
        ),
        ({"turns": ["Where is it?"], "expect": [{**says("Here"), "in_turn": 0}]},),
    ),
    Report(
        "Agentforce: AiEvaluationDefinition in XML",
        "test cases with expectations",
        "refused",
        "calls and the outcome",
        "a.xml",
        '<AiEvaluationDefinition xmlns="http://soap.sforce.com/2006/04/metadata"><name>T</name>'
        "<testCase><number>1</number><inputs><utterance>Is it warm?</utterance></inputs>"
        "<expectation><name>topic_sequence_match</name><expectedValue>Weather</expectedValue></expectation>"
        "<expectation><name>action_sequence_match</name><expectedValue>['Check']</expectedValue></expectation>"
        "<expectation><name>bot_response_rating</name><expectedValue>Tells it.</expectedValue></expectation>"
        "</testCase></AiEvaluationDefinition>",
        (
            {
                "turns": ["Is it warm?"],
                "expected_outcome": "Tells it.",
                "trajectory": [{"expected": ["Check"], "match_mode": "contains"}],
            },
        ),
        "not used: 'topic_sequence_match'",
    ),
    Report(
        "LLaMA-Factory: dpo_en_demo.json",
        "preference data with conversations",
        "the preferred reply was not used",
        "the preferred reply is expected",
        "a.json",
        json.dumps(
            [
                {
                    "conversations": [{"from": "human", "value": "Where is it?"}],
                    "chosen": {"from": "gpt", "value": "Here"},
                    "rejected": {"from": "gpt", "value": "There"},
                }
            ]
        ),
        (ANSWER,),
        "answer: chosen.value",
    ),
    Report(
        "LLaMA-Factory: alpaca_en_demo.json",
        "instruction and input, of which one looks like a list",
        "refused: it has no columns",
        "both are the message, word for word",
        "a.json",
        json.dumps(
            [
                {"instruction": "Sum up.", "input": "", "output": "Here"},
                {"instruction": "Sum up.", "input": "[1, 2]", "output": "Here"},
                {"instruction": "Sum up.", "input": "One", "output": "Here"},
            ]
        ),
        ({"turns": ["Sum up."]}, {"turns": ["Sum up.\n[1, 2]"]}, {"turns": ["Sum up.\nOne"]}),
    ),
    Report(
        "LLaMA-Factory: identity.json",
        "an input that is empty in all rows",
        "all rows were invalid: the user would say nothing",
        "the instruction",
        "a.json",
        json.dumps([{"instruction": "Where is it?", "input": "", "output": "Here"}]),
        (ANSWER,),
    ),
    Report(
        "microsoft/ai-agent-evals: dataset.json",
        "rows beside the messages of a grader",
        "the grader's prompt was taken for a session",
        "the rows",
        "a.json",
        json.dumps(
            {
                "data": [{"query": "Where is it?", "ground_truth": "Here"}],
                "openai_graders": {"g": {"input": [*TALKED]}},
            }
        ),
        (ANSWER,),
        "not used: 'openai_graders'",
    ),
    Report(
        "awslabs/agent-evaluation: agenteval.yml",
        "tests by name",
        "refused: no column",
        "steps are the goal, expected results are criteria",
        "agenteval.yml",
        "target: {type: x}\ntests:\n  claims:\n    steps: [Ask for open claims.]\n"
        "    expected_results: [Lists two.]\n",
        ({"name": "claims", "goal": "Ask for open claims.", "criteria": ["Lists two."]},),
    ),
    Report(
        "HF: rows of multiple choice",
        "a question with choices",
        "refused as a log of OpenAI",
        "the question and the answer",
        "a.jsonl",
        rows({"question": "Where is it?", "choices": {"text": ["Here", "There"]}, "answer": "Here"}),
        (ANSWER,),
    ),
    Report(
        "HF: rows with citations",
        "a list of objects with authors beside a question",
        "taken for a session",
        "the question and the answer",
        "a.jsonl",
        rows({"query": "Where is it?", "label": "Here", "payload": [{"author": "customer", "text": "x"}]}),
        (ANSWER,),
    ),
    Report(
        "google/adk-samples: eval_data/*.test.json",
        "query, expected_tool_use and reference",
        "the calls were not used",
        "the calls",
        "a.test.json",
        json.dumps(
            [
                {
                    "query": "Where is it?",
                    "expected_tool_use": [{"tool_name": "get_order", "tool_input": {"id": 17}}],
                    "reference": "Here",
                }
            ]
        ),
        ({**ANSWER, "trajectory": [{"expected": [ORDER], "match_mode": "contains"}]},),
    ),
    Report(
        "Botium: a convo without a reply of the bot",
        "only #me",
        "invalid: expect is empty",
        "the message",
        "a.convo.txt",
        "Main\n\n#me\nWhere is it?\n",
        ({"turns": ["Where is it?"]},),
    ),
    Report(
        "LLaMA-Factory: rows with tools",
        "definitions of tools as a JSON text",
        "invalid: tools: expected a dict",
        "not used",
        "a.json",
        json.dumps([{"question": "Where is it?", "answer": "Here", "tools": '[{"name": "get_order"}]'}]),
        (ANSWER,),
        "not used: 'tools'",
    ),
    Report(
        "google/adk-python: *.test.json with eval_cases",
        "an evaluation set",
        "refused: no column is known",
        "refused: the command that runs it",
        "a.test.json",
        json.dumps({"eval_set_id": "e", "eval_cases": [{"eval_id": "1", "conversation": []}]}),
        (),
        "run it as it is, by agentest eval a.test.json",
    ),
)


def seen(scenario: Scenario) -> dict[str, Any]:
    """Return what counts of a scenario, with its history as texts."""
    history = []
    for each in scenario.history:
        match each:
            case UserText():
                history.append(f"user: {each.text}")
            case AgentMessage():
                history += [f"assistant: {each.text}"] if each.text else []
                history += [f"call: {call.name}" for call in each.tool_requests]
            case ToolResult():
                history.append(f"result: {each.text}")
    of_data = {key: as_data(getattr(scenario, key)) for key in ("turns", "expect", "trajectory")}
    texts = {key: getattr(scenario, key) for key in ("name", "goal", "expected_outcome", "is_continued")}
    criteria = [each.text for each in scenario.criteria]
    return {**of_data, **texts, "history": history, "criteria": criteria}


@pytest.mark.parametrize("report", LOG, ids=[f"{each.source} {each.kind}" for each in LOG])
def test_public_reports_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, report: Report) -> None:
    """The command makes these scenarios of the file, or refuses it with these words."""
    monkeypatch.chdir(tmp_path)
    content = report.content if isinstance(report.content, bytes) else report.content.encode()
    (tmp_path / report.name).write_bytes(content)
    (tmp_path / "b.csv").write_text("what,__expected\nit,Here\n", encoding="utf-8")
    done = CliRunner().invoke(import_, [report.name, "--output", "made.sim.yaml"], standalone_mode=False)
    assert report.told in f"{done.stdout}{done.stderr}{done.exception or ''}"
    made = tmp_path / "made.sim.yaml"
    assert made.exists() is bool(report.value)
    scenarios = discover_file(made, Imports()).scenarios if report.value else ()
    assert not [each.refused for each in scenarios if each.refused]
    for scenario, value in zip(scenarios, report.value, strict=True):
        assert {key: seen(scenario)[key] for key in value} == value


def test_the_log_has_forty_sources_and_each_says_what_changed() -> None:
    """No source occurs twice."""
    assert len({each.source for each in LOG}) == len(LOG) >= 60
    assert all(each.kind and each.before and each.after for each in LOG)
