"""Agents behind gRPC: a real server on loopback, with reflection or a .proto file, and what goes wrong."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import message_factory
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_reflection.v1alpha import reflection, reflection_pb2
from grpc_tools import protoc
from project import Project

from agentest import scenario
from agentest.config import Config
from agentest.domain.results import RunResult, Status
from agentest.plugins.authoring.endpoint_detection import detect_agent
from agentest.plugins.protocols.grpc.client import _method_in
from agentest.support.errors import AgentestError, CannotSend
from agentest.testing import run_scenarios

PROTO = """
syntax = "proto3";
package salon.v1;
import "google/protobuf/any.proto";
import "google/protobuf/struct.proto";
message Ask { string message = 1; string session_id = 2; int32 turn = 3; }
message Call { string tool = 1; google.protobuf.Struct input = 2; }
message Answer { string text = 1; string session_id = 2; repeated Call calls = 3; bool failed = 4;
  google.protobuf.Any extra = 5; }
service Booking {
  rpc Chat(Ask) returns (Answer);
  rpc Stream(Ask) returns (stream Answer);
  rpc Upload(stream Ask) returns (Answer);
}
"""


class Salon:
    """Counts the turns of each session, which it names itself if the caller names none."""

    def __init__(self, folder: Path) -> None:
        self.turns: Counter[str] = Counter()
        self.metadata: list[dict[str, Any]] = []
        source = folder / "salon.proto"
        source.write_text(PROTO)
        out, include = folder / "set", Path(protoc.__file__).parent / "_proto"
        assert not protoc.main(
            [
                "",
                f"-I{folder}",
                f"-I{include}",
                "--include_imports",
                f"--descriptor_set_out={out}",
                str(source),
            ]
        )
        self.pool = DescriptorPool()
        for file in FileDescriptorSet.FromString(out.read_bytes()).file:
            self.pool.Add(file)
        self.Ask, self.Answer = (
            message_factory.GetMessageClass(self.pool.FindMessageTypeByName(f"salon.v1.{name}"))
            for name in ("Ask", "Answer")
        )

    def chat(self, ask: Any, context: Any) -> Any:
        self.metadata.append(dict(context.invocation_metadata()))
        if ask.message == "boom":
            context.abort(grpc.StatusCode.INTERNAL, "out of order")
        is_expired = self.metadata[-1].get("authorization") == "Bearer token-1" and ask.message == "expired"
        if ask.message == "who?" or is_expired:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "no token")
        if ask.message == "strange":
            return self.Answer(extra={"type_url": "type.googleapis.com/other.Message", "value": b"x"})
        name = ask.session_id or f"s{len(self.turns)}"
        self.turns[name] += 1
        answer = self.Answer(
            text=f"{ask.message} {self.turns[name]}", session_id=name, failed=ask.message == "fail"
        )
        if "book" in ask.message:
            answer.calls.add(tool="book").input.update({"what": ask.message})
        return answer

    def stream(self, ask: Any, context: Any) -> Iterator[Any]:
        while ask.message == "endless":
            yield self.Answer(text="x" * 1_000_000)
        for word in f"{ask.message} in pieces".split(" "):
            yield self.Answer(text=f"{word} ")

    @contextmanager
    def serving(
        self, *, reflects: str = "v1alpha", info: Callable[..., Iterator[Any]] | None = None
    ) -> Iterator[str]:
        server = grpc.server(ThreadPoolExecutor(24))
        options = {
            "request_deserializer": self.Ask.FromString,
            "response_serializer": self.Answer.SerializeToString,
        }
        methods = {
            "Chat": grpc.unary_unary_rpc_method_handler(self.chat, **options),
            "Stream": grpc.unary_stream_rpc_method_handler(self.stream, **options),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("salon.v1.Booking", methods),))
        if reflects:
            servicer = reflection.ReflectionServicer(("salon.v1.Booking",), pool=self.pool)
            reflected = grpc.stream_stream_rpc_method_handler(
                info or servicer.ServerReflectionInfo,
                request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
                response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
            )
            name = f"grpc.reflection.{reflects}.ServerReflection"
            handler = grpc.method_handlers_generic_handler(name, {"ServerReflectionInfo": reflected})
            server.add_generic_rpc_handlers((handler,))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            server.stop(None).wait()


@pytest.fixture
def salon(tmp_path: Path) -> Salon:
    return Salon(tmp_path)


CHAT = {
    "method": "salon.v1.Booking/Chat",
    "reply": "text",
    "body": {"message": "{{message}}", "session_id": "{{session_id}}"},
}


def run(
    endpoint: str,
    *turns: str,
    conversations: int = 1,
    expected: Any = None,
    **agent: Any,
) -> RunResult:
    config = Config.model_validate(
        {"agent": {"type": "grpc", "endpoint": endpoint, **CHAT, **agent}, "request_timeout_ms": 5000}
    )
    options: dict[str, Any] = {"trajectory": {"expected": expected}} if expected else {}
    made = scenario("s", turns=list(turns), conversations_per_scenario=conversations, **options)
    return run_scenarios([made], config=config)


def replies(result: RunResult) -> list[tuple[str, ...]]:
    return [each.conversation.replies for each in result.scenarios[0].conversations]


def problem(result: RunResult) -> str:
    failure = result.scenarios[0].conversations[0].conversation.failure
    return failure.message if failure else ""


def test_many_conversations_over_one_channel(salon: Salon) -> None:
    """Twenty conversations of three turns at once: each counts its own, and metadata and calls are seen."""
    with salon.serving() as endpoint:
        result = run(
            endpoint,
            "hi",
            "book a cut",
            "bye",
            conversations=20,
            tool_calls="calls[].{name: tool, args: input}",
            headers={"X-Tenant": "t1"},
            expected=[{"name": "book", "args": {"what": "book a cut"}}],
        )
    assert replies(result) == [("hi 1", "book a cut 2", "bye 3")] * 20
    assert result.scenarios[0].verdict.status is Status.PASSED
    assert {each["x-tenant"] for each in salon.metadata} == {"t1"}
    assert len(salon.turns) == 20


def test_the_servers_session_is_sent_back(salon: Salon) -> None:
    """Until the server has named its session, `session_id` is left out."""
    with salon.serving() as endpoint:
        result = run(endpoint, "hi", "you", session="session_id")
    assert replies(result) == [("hi 1", "you 2")]
    assert list(salon.turns) == ["s0"]


def test_a_stream_is_put_together(salon: Salon) -> None:
    with salon.serving() as endpoint:
        result = run(endpoint, "words", method="salon.v1.Booking/Stream", reply=None, delta="text")
    assert replies(result) == [("words in pieces ",)]
    assert result.scenarios[0].conversations[0].conversation.turns[0].first_token_ms is not None


def test_a_stream_has_the_size_limit_of_a_body(salon: Salon) -> None:
    with salon.serving() as endpoint:
        result = run(endpoint, "endless", method="salon.v1.Booking/Stream", reply=None, delta="text")
    assert "the agent's answer is larger than 10 MB" in problem(result)
    assert result.scenarios[0].verdict.status is Status.FAILED


def test_reflection_has_two_versions(salon: Salon) -> None:
    with salon.serving(reflects="v1") as endpoint:
        assert replies(run(endpoint, "hi", headers={"x-trace-bin": "aGk="})) == [("hi 1",)]
    assert salon.metadata[0]["x-trace-bin"] == b"hi"


@pytest.mark.parametrize("reason", ["is not complete: the imports of a.proto", "is not valid: Couldn't"])
def test_a_description_that_cannot_be_used(reason: str) -> None:
    file = FileDescriptorProto(name="a.proto", dependency=["a.proto"] if "complete" in reason else [])
    file.service.add(name="Chat").method.add(name="Say", input_type=".Missing", output_type=".Missing")
    with pytest.raises(CannotSend, match=f"the description of Chat/Say {reason}"):
        _method_in([file.SerializeToString()], "Chat/Say")


def test_a_description_without_one_of_its_files() -> None:
    """A long chain is read, up to the file that is missing."""
    files = [FileDescriptorProto(name=f"{n}.proto", dependency=[f"{n + 1}.proto"]) for n in range(8000)]
    with pytest.raises(CannotSend, match=r"is not complete: 8000.proto is missing"):
        _method_in([file.SerializeToString() for file in files], "Chat/Say")


@pytest.mark.parametrize(("size", "most"), [(0, 2000), (900_000, 3)])
def test_a_reflection_without_end(salon: Salon, size: int, most: int) -> None:
    """Each file imports one more: neither its files nor its bytes are read forever."""
    sent = list[str]()

    def info(requests: Iterator[Any], _: object) -> Iterator[Any]:
        for _ in requests:
            sent.append(f"{len(sent)}.proto")
            file = FileDescriptorProto(name=sent[-1], package="x" * size, dependency=[f"{len(sent)}.proto"])
            answer = reflection_pb2.ServerReflectionResponse()
            answer.file_descriptor_response.file_descriptor_proto.append(file.SerializeToString())
            yield answer

    with salon.serving(info=info) as endpoint:
        result = run(endpoint, "hi")
    assert "the reflection sent more than 2 MB or 2,000 files" in problem(result)
    assert result.scenarios[0].verdict.status is Status.ERRORED
    assert most <= len(sent) <= most + 1


def test_a_proto_file_replaces_reflection(salon: Salon, tmp_path: Path) -> None:
    with salon.serving(reflects="") as endpoint:
        without = run(endpoint, "hi")
        result = run(endpoint, "hi", proto=str(tmp_path / "salon.proto"))
        (tmp_path / "broken.proto").write_text("syntax = ")
        broken = run(endpoint, "hi", proto=str(tmp_path / "broken.proto"))
    assert replies(result) == [("hi 1",)]
    assert "the server has no reflection" in problem(without)
    assert "proto: path/to/service.proto" in problem(without)
    assert "broken.proto cannot be compiled" in problem(broken)
    assert without.scenarios[0].verdict.status is Status.ERRORED


@pytest.mark.parametrize(
    ("message", "agent", "expected", "status"),
    [
        ("boom", {}, "answered INTERNAL: out of order", Status.FAILED),
        ("who?", {}, "answered UNAUTHENTICATED: no token", Status.ERRORED),
        ("fail", {"error": "failed"}, "`error: failed`", Status.FAILED),
        ("hi", {"reply": "txt"}, "`reply: txt` finds nothing", Status.FAILED),
        ("strange", {}, "a message of an unknown type", Status.ERRORED),
        ("hi", {"headers": {"x-name": "Zoë"}}, "headers.x-name: gRPC takes only ASCII", Status.ERRORED),
        ("hi", {"headers": {"x-bin": "a"}}, "a name with -bin in base64", Status.ERRORED),
        ("hi", {"method": "salon.v1.Bookin/Chat"}, "no service 'salon.v1.Bookin'", Status.ERRORED),
        ("hi", {"method": "salon.v1.Booking/Chatt"}, "it has Chat, Stream, Upload", Status.ERRORED),
        ("hi", {"method": "salon.v1.Booking/Upload"}, "takes a stream of requests", Status.ERRORED),
        (
            "hi",
            {"body": {"mesage": "{{message}}"}},
            "its fields are message, session_id, turn",
            Status.ERRORED,
        ),
    ],
)
def test_what_goes_wrong(
    salon: Salon, message: str, agent: dict[str, Any], expected: str, status: Status
) -> None:
    with salon.serving() as endpoint:
        result = run(endpoint, message, **agent)
    assert expected in problem(result)
    assert result.scenarios[0].verdict.status is status


def test_a_server_that_is_not_there(salon: Salon) -> None:
    with salon.serving() as endpoint:
        pass
    with pytest.raises(AgentestError, match="cannot be reached"):
        run(endpoint, "hi", retries=0)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"endpoint": "http://localhost:1"}, "write host and port without a scheme"),
        ({"endpoint": "localhost:70000"}, "ports go from 1 to 65535"),
        ({"method": "Chat"}, "write service and method"),
        ({"body": {"message": "hi"}}, 'put "{{message}}" into `body`'),
        ({"done": "x"}, "is not for gRPC"),
    ],
)
def test_settings(settings: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        Config.model_validate({"agent": {"type": "grpc", "endpoint": "localhost:1", **CHAT, **settings}})


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("echo token-1", "✓ protocol: grpc, as configured: it answered 'Hello.'"),
        ("false", "exited with status 1"),
    ],
)
def test_doctor_sends_a_message(salon: Salon, project: Project, command: str, expected: str) -> None:
    with salon.serving() as endpoint:
        headers = {"authorization": {"command": command}}
        agent = {"type": "grpc", "endpoint": endpoint, **CHAT, "headers": headers}
        project.write("agentest.config.yaml", json.dumps({"agent": agent}))
        done = project.agentest("doctor")
    assert expected in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("reflects", "said"),
    [
        ("v1", "`salon.v1.Booking/Chat`, `salon.v1.Booking/Stream`, `salon.v1.Booking/Upload`"),
        ("", "the server has no reflection"),
    ],
)
def test_init_lists_the_methods_of_a_server_of_grpc(reflects: str, said: str, salon: Salon) -> None:
    with salon.serving(reflects=reflects) as endpoint:
        found = detect_agent(f"http://{endpoint}")
    assert (found.settings["type"], found.settings["endpoint"]) == ("grpc", endpoint)
    assert "as gRPC does" in found.remarks[0]
    assert f"  type: grpc\n  endpoint: {endpoint}\n  method: " in found.remarks[0]
    assert said in found.remarks[1]
    assert "Bad status line" not in "".join(found.tried)
    assert not found.is_complete


def test_init_names_the_package_if_it_is_missing(salon: Salon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "grpc.aio", None)
    with salon.serving() as endpoint:
        found = detect_agent(f"http://{endpoint}")
    assert "pip install 'agentest-sim[grpc]'" in found.remarks[1]


def test_the_package_is_named_if_it_is_missing(salon: Salon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "grpc.aio", None)
    with salon.serving() as endpoint, pytest.raises(AgentestError, match="agentest-sim"):
        run(endpoint, "hi")
