"""Agents that are programs: how messages go in, what comes out, and how they end."""

from __future__ import annotations

import shlex
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import hurrying
import pytest
from descriptors import no_more_than, opened
from project import Project, wait_until
from talking import converse

from agentest import call, scenario
from agentest.agents.port import Resources
from agentest.config import Config
from agentest.domain.results import RunResult
from agentest.domain.transcript import Conversation
from agentest.plugins.protocols.command.client import Program, open_agent
from agentest.plugins.protocols.command.settings import CommandAgent
from agentest.runner.environment import RESERVE, limited_to_connections
from agentest.runner.prepare import RunRequest, prepare
from agentest.support.errors import CannotSend, ConfigError
from agentest.support.http.client import open_client
from agentest.testing import run_scenarios

PYTHON = sys.executable
ECHO = "import sys; print('You said:', sys.argv[-1])"
STDIN = "import sys; print(sys.stdin.read().upper())"
JSON = """
import json, sys
said = json.load(sys.stdin)["messages"]
print(json.dumps({"out": {"text": f"{len(said)} messages, last: {said[-1]['content']}"},
                  "used": [{"tool": "find", "input": {"q": 1}, "output": [2]}]}))
"""
CHAT = """
import json, sys
def tell(**event): print(json.dumps(event), flush=True)
count = 0
for line in sys.stdin:
    said, count = json.loads(line)["text"], count + 1
    if said == "stop": sys.exit("out of order")
    if said == "fail": tell(type="error", message="no such thing")
    if said.startswith("book"):
        tell(type="text", text="Let me see. ")
        for number in range(2):
            tell(type="tool", id=f"t{number}", name="book", input={"what": said[5:], "number": number})
            answer = json.loads(sys.stdin.readline())
            tell(type="text", text=f"{answer['id']}={answer['output']['ok']} ")
    tell(type="text", text=f"turn {count}")
    tell(type="end")
"""
DIALOGUE: dict[str, Any] = {
    "input": "jsonl",
    "body": {"text": "{{message}}"},
    "delta": "type == 'text' && text",
    "error": "type == 'error' && message",
    "done": "type == 'end'",
    "tool_request": "type == 'tool' && {id: id, name: name, args: input}",
    "tool_response": {"id": "{{tool.id}}", "output": "{{tool.result}}"},
}


def agent(code: str, *words: str, **settings: Any) -> dict[str, Any]:
    return {"type": "command", "command": [PYTHON, "-c", code, *words], **settings}


def run(settings: dict[str, Any], *turns: str, **options: Any) -> RunResult:
    return run_scenarios(
        [scenario("s", turns=list(turns), **options)], agent=settings, unmocked_tools="passthrough"
    )


def replies(settings: dict[str, Any], *turns: str, **options: Any) -> list[str]:
    (held,) = run(settings, *turns, **options).scenarios[0].conversations
    assert held.conversation.failure is None, held.conversation.failure
    return [turn.agent_message for turn in held.conversation.turns]


def problem(settings: dict[str, Any], *turns: str) -> str:
    (held,) = run(settings, *turns).scenarios[0].conversations
    assert held.conversation.failure is not None
    return held.conversation.failure.message


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (agent(ECHO), ["You said: Hi; rm -rf *", 'You said: "two"']),
        (agent(ECHO, "<{{message}}>", "{{turn_index}}"), ["You said: 0", "You said: 1"]),
        (agent(STDIN, input="stdin"), ["HI; RM -RF *", '"TWO"']),
        (
            agent(JSON, input="json", reply="out.text"),
            ["1 messages, last: Hi; rm -rf *", '3 messages, last: "two"'],
        ),
        (agent("import os; print(os.environ['WHO'])", env={"WHO": "{{scenario}}"}), ["s", "s"]),
    ],
    ids=["argument", "placeholders", "stdin", "json", "env"],
)
def test_ways_in(settings: dict[str, Any], said: list[str]) -> None:
    """The message reaches the program as it is, by no shell, and its output is the reply."""
    assert replies(settings, "Hi; rm -rf *", '"two"') == said


def test_a_process_for_the_conversation() -> None:
    """With jsonl one process hears all turns; its tools are answered by mocks, one after the other."""
    mocks = {"book": lambda args, ctx: {"ok": f"{args['what']}{args['number']}"}}
    result = run(agent(CHAT, **DIALOGUE), "hello", "book a table", tools=mocks)
    (held,) = result.scenarios[0].conversations
    first, second = held.conversation.turns
    assert (first.agent_message, second.agent_message) == (
        "turn 1",
        "Let me see. t0=a table0 t1=a table1 turn 2",
    )
    assert [(c.name, c.args["number"], c.mocked, c.seen_by) for c in second.tool_calls] == [
        ("book", 0, True, "caller"),
        ("book", 1, True, "caller"),
    ]
    assert first.first_token_ms is not None


def test_reported_calls() -> None:
    """Calls that the output reports are seen, so trajectories and bans are judged."""
    settings = agent(
        JSON, input="json", reply="out.text", tool_calls="used[].{name: tool, args: input, result: output}"
    )
    banned = run(settings, "Hi", trajectory={"forbidden": ["find"]}).scenarios[0]
    assert (banned.verdict.status, banned.conversations[0].conversation.tool_calls[0].result) == (
        "failed",
        [2],
    )
    expected = {"match_mode": "strict", "expected": [call("find", q=1)]}
    assert run(settings, "Hi", trajectory=expected).scenarios[0].verdict.passed
    unseen = run(agent(ECHO), "Hi", trajectory={"forbidden": ["find"]}).scenarios[0]
    assert unseen.verdict.status == "errored"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (agent("import sys; sys.exit('broken')"), "exited with status 1; its log ends with:\nbroken"),
        (agent("import os; os.kill(os.getpid(), 9)"), "was ended by signal 9; it logged nothing"),
        (agent("print()"), "the agent's reply is empty"),
        (agent("print('x' * 11_000_000)"), "wrote more than 10 MB"),
        (agent("print('no json')", input="json"), 'is not JSON: "no json"'),
        (
            agent('print(\'{"data": {"says": "Hi"}}\')', input="json", reply="text"),
            "`reply: text` finds nothing in the agent's answer; found text at `data.says`",
        ),
        (agent(CHAT, **DIALOGUE), "ended before its turn was done: it exited with status 1; its log"),
        (agent("while True: print('[%s]' % ('1,' * 50_000 + '1'))", **DIALOGUE), "wrote more than 10 MB"),
        (
            agent('print(\'{"error": "E"}\')', input="json", error="error"),
            "an error (`error: error`): E",
        ),
    ],
    ids=["status", "signal", "nothing", "much", "no-json", "no-reply", "ends", "endless", "error"],
)
def test_errors(settings: dict[str, Any], said: str) -> None:
    """A program's failure is the agent's error, with the end of its log."""
    assert said.replace('"no json"', "'no json'") in problem(settings, "stop")


@pytest.mark.parametrize("form", ["json", "jsonl"])
def test_calls_before_an_error_stay(form: str) -> None:
    """Calls before a failure are recorded, even if one message has both."""
    told = 'import sys; sys.stdin.readline(); print(\'{"error": "E", "calls": {"name": "pay"}}\')'
    settings = agent(told, input=form, error="error", tool_calls="calls")
    (held,) = run(settings, "Hi").scenarios[0].conversations
    assert held.conversation.failure is not None
    assert [made.name for made in held.conversation.tool_calls] == ["pay"]


def test_an_error_in_a_dialogue() -> None:
    """A line that reports an error ends the conversation."""
    assert problem(agent(CHAT, **DIALOGUE), "hello", "fail").endswith("): no such thing")


def test_a_program_that_does_not_end(tmp_path: Path) -> None:
    """A time-out ends the program and what it has started."""
    started = tmp_path / "pid"
    program = ["sh", "-c", f"sleep 600 & echo working >&2; echo $! > {shlex.quote(str(started))}; sleep 600"]

    async def go() -> Conversation:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hurrying.hurry_when, lambda: hurrying.has_text(started))
            return await converse({"type": "command", "command": program}, ["Hi"], [], timeout_s=60.0)

    failure = hurrying.run(go).failure
    assert failure is not None
    assert "did not answer within 60 s (request_timeout_ms); its log ends with:\nworking" in failure.message
    wait_until(lambda: not runs(int(started.read_text())))


def test_no_file_descriptors_left(tmp_path: Path) -> None:
    """Without file descriptors the scenario is errored without blaming the agent, and none leaks."""

    async def start() -> tuple[str, int]:
        before = opened()
        with no_more_than(4), pytest.raises(CannotSend) as caught:
            await Program.start([PYTHON], {}, tmp_path)
        return str(caught.value), len(opened() - before)

    said, lost = anyio.run(start)
    assert "Too many open files" in said
    assert "lower `concurrency`" in said
    assert lost == 0


def test_programs_need_more_file_descriptors(project: Project) -> None:
    """A program needs pipes for each conversation, not one connection."""
    project.config("", agent={"type": "command", "command": ["bot"]}, concurrency=100)
    project.scenario("for n in range(100):\n    scenario(f's{n}', turns=['hi'])")
    run = prepare(RunRequest(project.root), {})
    fit = limited_to_connections(run, allow=lambda needed: min(needed, RESERVE + 71))
    assert fit.request.options.concurrency == 10
    assert "100 conversations at once need 732 file descriptors" in fit.notes[-1]


def runs(pid: int) -> bool:
    """Return whether a process still runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.slow
def test_fifty_at_once() -> None:
    """Fifty conversations have fifty processes, and none hears of another's."""
    mocks = {"book": lambda args, ctx: {"ok": ctx.conversation_id}}
    conversations = scenario("s", turns=["hello", "book it"], tools=mocks, conversations_per_scenario=50)
    result = run_scenarios([conversations], agent=agent(CHAT, **DIALOGUE), concurrency=50)
    held = [one.conversation for one in result.scenarios[0].conversations]
    assert len(held) == 50
    for one in held:
        assert one.turns[1].agent_message.count(f"={one.conversation_id} ") == 2
        assert [c.args["number"] for c in one.tool_calls] == [0, 1]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"command": "python agent.py"}, "no shell splits it: write a list"),
        ({"command": []}, "at least 1"),
        ({"command": ["x"], "body": {}}, "`body` is for input: json and jsonl"),
        ({"command": ["x"], "done": "a"}, "`done` is for input: jsonl"),
        (
            {"command": ["x", "{{mesage}}"]},
            r"`command` has the placeholder \{\{mesage\}\}, which stands for noth",
        ),
        ({"command": ["x"], "input": "jsonl", "tool_request": "a"}, "belong together"),
        ({"command": ["x"], "input": "jsonl", "delta": "a"}, "`delta` needs `done`"),
        ({"command": ["x"], "reply": "a["}, "which is not JMESPath"),
    ],
    ids=["text", "empty", "body", "done", "placeholder", "half", "endless", "path"],
)
def test_wrong_settings(settings: dict[str, Any], said: str) -> None:
    """Wrong settings are refused with the key and what it takes."""
    with pytest.raises(ValueError, match=said):
        Config.model_validate({"agent": {"type": "command", **settings}})


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    """A program or a folder that does not exist ends the run before the first conversation."""

    async def go(**settings: Any) -> None:
        async with AsyncExitStack() as stack:
            resources = Resources(
                client=await stack.enter_async_context(open_client()),
                timeout_s=1,
                threads=anyio.CapacityLimiter(1),
                root=tmp_path,
                closing=stack,
                on_note=lambda _: None,
            )
            open_agent("a", CommandAgent(type="command", **settings), resources)

    with pytest.raises(ConfigError, match="found no program 'no-such-program' on the PATH"):
        anyio.run(lambda: go(command=["no-such-program"]))
    with pytest.raises(ConfigError, match=r"found no program '\./agent'"):
        anyio.run(lambda: go(command=["./agent"]))
    with pytest.raises(ConfigError, match=r"cwd: the folder .* does not exist"):
        anyio.run(lambda: go(command=[PYTHON], cwd="nowhere"))
