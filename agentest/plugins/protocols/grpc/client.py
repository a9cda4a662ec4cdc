"""Client for agents behind gRPC. Requests and responses are converted from and to the JSON form of messages.

The server's own description (reflection) or a .proto file says what the messages are. grpcio is an extra.
"""

from __future__ import annotations

import sys
import tempfile
from base64 import b64decode
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, NoReturn

import anyio

from agentest.agents import port
from agentest.agents.credential_renewal import CommandValue, UsedValues, accept, renew, renewable
from agentest.agents.placeholders import TurnValues
from agentest.agents.reply_detection import text_of
from agentest.config.agents.over_http import header_commands, sent_headers
from agentest.config.fields import check_headers
from agentest.domain.messages import Message
from agentest.plugins.protocols.dialogue import MessagePaths, TurnReader
from agentest.plugins.protocols.grpc.settings import GrpcAgent
from agentest.support.deadlines import TimeLimit
from agentest.support.errors import AgentError, CannotSend, ConfigError, errors_as
from agentest.support.http.bodies import MAX_BODY_BYTES
from agentest.support.http.retries import pause_before_retry
from agentest.support.jmespath_expressions import JsonPath
from agentest.support.process_groups import OutputTail, start_process
from agentest.support.templates import Template, as_text, without
from agentest.support.text import did_you_mean, shortened
from agentest.support.trace_context import note_request, turn_of_requests

_MOST_FILES, _MOST_DESCRIPTION_BYTES = 2_000, 2_000_000  # a byte may take 150 in memory
_MOST_LISTED = 20  # services whose methods an error lists
_TOO_LARGE = f"the reflection sent more than {_MOST_DESCRIPTION_BYTES / 1e6:g} MB or {_MOST_FILES:,} files"
_INSTALL = "pip install 'agentest-sim[grpc]'"


def open_agent(name: str, config: GrpcAgent, resources: port.Resources) -> port.ConversationalAgent:
    """Return the client of an agent behind gRPC. Raises ConfigError."""
    try:
        import grpc.aio
        from google.protobuf import json_format
    except ImportError:
        raise ConfigError(f"agent {name!r}: type: grpc needs grpcio; run: {_INSTALL}") from None
    del json_format
    if config.proto and not (resources.root / config.proto).is_file():
        raise ConfigError(f"agent {name!r}: proto: the file {resources.root / config.proto} does not exist")
    limits = [("grpc.max_receive_message_length", MAX_BODY_BYTES)]
    if config.tls:
        channel = grpc.aio.secure_channel(config.endpoint, grpc.ssl_channel_credentials(), limits)
    else:
        channel = grpc.aio.insecure_channel(config.endpoint, limits)
    resources.closing.push_async_callback(channel.close)
    client = GrpcClient(config, channel, resources)
    return port.ConversationalAgent(name, lambda: _GrpcConversation(client), takes_attachments=False)


class GrpcClient:
    """Calls the agent's method over one channel. Stores no conversation state."""

    def __init__(self, config: GrpcAgent, channel: Any, resources: port.Resources) -> None:
        self.name = config.name
        self.session = None if config.session is None else JsonPath(config.session)
        self._config = config
        self._channel = channel
        self._timeout_s = resources.timeout_s
        self._proto = resources.root / config.proto if config.proto else None
        self._form = MessagePaths.of(config)
        self._notes = port.AgentNotes(config.name, resources.on_note)
        self._headers = Template(sent_headers(config.headers))
        self._commands = [
            CommandValue(header, command, resources.root, resources.on_secret)
            for header, command in header_commands(config.headers).items()
        ]
        self._method: Any = None  # the descriptor of the method, once it is known
        self._finding = anyio.Lock()

    async def call(
        self, values: TurnValues, unknown: set[str], turn_index: int
    ) -> tuple[port.AgentReply, list[Mapping[str, Any]]]:
        """Call the method and return the reply and all responses. `unknown`: placeholders to leave out."""
        from grpc.aio import AioRpcError

        method = await self._described()
        body = Template(without(self._config.body, unknown)).filled(values)
        request, attempt = _encoded(body, method), -1
        while True:
            attempt += 1
            reader, heard = TurnReader(self._form, turn_index, self._notes), list[Mapping[str, Any]]()
            limit = TimeLimit(self._timeout_s)
            metadata, used = await self._metadata(values)
            try:
                with limit:
                    async for message in self._responses(method, request, metadata):
                        heard.append(message)
                        port.AGENT_ANSWERED.set(True)
                        reader.hear(message, limit)
                reader.done = True
                reply = reader.reply(limit, attempt)
            except TimeoutError:
                problem = f"no complete answer within {self._timeout_s:g} s (request_timeout_ms)"
                raise self._no_reply(problem, reader, attempt) from None
            except AioRpcError as error:
                code, details = error.code().name, error.details() or ""
                never_arrived = code == "UNAVAILABLE" and "failed to connect" in details
                if never_arrived and not heard and attempt < self._config.retries:
                    await anyio.sleep(pause_before_retry(attempt + 1))
                    continue
                denied = code == "UNAUTHENTICATED" and not heard
                if denied and (old := renewable(used)):
                    await renew(old)
                    continue
                self._raise(error, reader, attempt)
            except AgentError as error:
                raise self._no_reply(str(error), reader, attempt) from None
            accept(used)
            return reply, heard

    async def _responses(
        self, method: Any, request: bytes, metadata: Sequence[tuple[str, str | bytes]]
    ) -> AsyncIterator[Mapping[str, Any]]:
        path = f"/{method.containing_service.full_name}/{method.name}"
        # The response of a unary method is a stream of one message.
        call = self._channel.unary_stream(path)(request, metadata=metadata)
        note_request()
        received = 0
        try:
            async for response in call:
                received += len(response)
                if received > MAX_BODY_BYTES:
                    raise AgentError(f"the agent's answer is larger than {MAX_BODY_BYTES // 2**20} MB")
                yield _decoded(response, method)
        finally:
            call.cancel()

    async def _metadata(self, values: TurnValues) -> tuple[list[tuple[str, str | bytes]], UsedValues]:
        """Return the headers as gRPC takes them, and the number of each value of a command among them."""
        named = {name.lower(): as_text(value) for name, value in self._headers.filled(values).items()}
        named |= {command.name.lower(): await command.current() for command in self._commands}
        turn = turn_of_requests()
        with errors_as(CannotSend, f"{self._config.address}: a header "):
            headers = check_headers({**named, **(turn.headers(named) if turn else {})})
        for name, value in headers.items():
            if not value.isascii():
                raise CannotSend(f"headers.{name}: gRPC takes only ASCII characters in a header's value")
        try:
            metadata = [
                (name, b64decode(value, validate=True) if name.endswith("-bin") else value)
                for name, value in headers.items()
            ]
        except ValueError as error:
            raise CannotSend(f"headers: write a value of a name with -bin in base64 ({error})") from None
        return metadata, {command: command.number for command in self._commands}

    def _no_reply(self, problem: str, reader: TurnReader, retries: int, sign: str = ": ") -> port.NoReply:
        return reader.no_reply(f"{self._config.address}{sign}{problem}", retries)

    def _raise(self, error: Any, reader: TurnReader, retries: int) -> NoReturn:
        problem = f"answered {error.code().name}: {shortened(error.details() or 'without details', 400)}"
        denies = error.code().name in ("UNAUTHENTICATED", "PERMISSION_DENIED", "UNIMPLEMENTED")
        if denies and not port.AGENT_ANSWERED.get():
            hint = "`headers` are the metadata of each call"
            raise port.AccessDenied(f"{self._config.address} {problem} ({hint})") from None
        raise self._no_reply(problem, reader, retries, " ") from None

    async def _described(self) -> Any:
        """Return the description of the method. Raises CannotSend if it cannot be had."""
        async with self._finding:
            if self._method is None:
                files = await (_compiled(self._proto) if self._proto else self._reflected())
                self._method = _method_in(files, self._config.method)
        return self._method

    async def _reflected(self) -> list[bytes]:
        from google.protobuf.message import DecodeError
        from grpc.aio import AioRpcError

        for version in ("v1alpha", "v1"):  # their messages are the same
            try:
                return await self._reflected_by(f"/grpc.reflection.{version}.ServerReflection")
            except AioRpcError as error:
                # grpcio reports INTERNAL if the server has ended the call before it is written to.
                if error.code().name not in ("UNIMPLEMENTED", "INTERNAL"):
                    raise self._cannot_describe(f"{error.code().name}: {error.details()}") from None
            except DecodeError:
                raise self._cannot_describe("the reflection sent a file that is not valid") from None
        raise self._cannot_describe("the server has no reflection")

    async def _reflected_by(self, reflection: str) -> list[bytes]:
        from google.protobuf.descriptor_pb2 import FileDescriptorProto
        from grpc_reflection.v1alpha import reflection_pb2 as wire

        call = self._channel.stream_stream(
            f"{reflection}/ServerReflectionInfo",
            request_serializer=wire.ServerReflectionRequest.SerializeToString,
            response_deserializer=wire.ServerReflectionResponse.FromString,
        )(timeout=self._timeout_s)

        async def ask(**request: str) -> Any:
            await call.write(wire.ServerReflectionRequest(**request))
            answer = await call.read()
            if not isinstance(answer, wire.ServerReflectionResponse):
                await call.code()
                raise self._cannot_describe("the reflection ended early")
            return answer

        service, found, waiting = self._config.method.partition("/")[0], dict[str, bytes](), [""]
        try:
            while waiting:
                name = waiting.pop()
                if name in found:
                    continue
                answer = await (ask(file_by_filename=name) if name else ask(file_containing_symbol=service))
                if answer.HasField("error_response") and not name:
                    raise _unknown_service(self._config.method, await _services_listed(ask))
                if answer.HasField("error_response"):
                    raise self._cannot_describe(f"{name}: {answer.error_response.error_message}")
                for content in answer.file_descriptor_response.file_descriptor_proto:
                    size = len(content) + sum(map(len, found.values()))
                    if size > _MOST_DESCRIPTION_BYTES or len(found) >= _MOST_FILES:
                        raise self._cannot_describe(_TOO_LARGE)
                    file = FileDescriptorProto.FromString(content)
                    found[file.name] = content
                    waiting += file.dependency
            await call.done_writing()
        finally:
            call.cancel()
        return list(found.values())

    def _cannot_describe(self, why: str) -> CannotSend:
        return CannotSend(
            f"{self._config.address}: the messages of the method are unknown ({why}); name the file that "
            "describes them: proto: path/to/service.proto"
        )


class _GrpcConversation:
    def __init__(self, client: GrpcClient) -> None:
        self.name = client.name
        self._client = client
        self._session_id: str | None = None

    async def reply(self, messages: Sequence[Message], ctx: port.TurnContext) -> port.AgentReply:
        known = {} if self._session_id is None else {"session_id": self._session_id}
        unknown = {"session_id"} if self._client.session is not None and not known else set[str]()
        reply, heard = await self._client.call(TurnValues(messages, ctx, known), unknown, ctx.turn_index)
        if self._client.session is not None and self._session_id is None:
            found = (text_of(self._client.session.find(message)) for message in heard)
            self._session_id = next(filter(None, found), None)
        return reply


async def _compiled(proto: Path) -> list[bytes]:
    """Compile a .proto file and what it imports. Raises CannotSend."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from grpc_tools import __file__ as tools

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "set"
        folders = [f"-I{proto.parent}", f"-I{Path(tools).parent / '_proto'}"]
        options = [*folders, "--include_imports", f"--descriptor_set_out={out}", str(proto)]
        log = OutputTail(400)
        process = await start_process([sys.executable, "-m", "grpc_tools.protoc", *options], stderr=log)
        try:
            status = await process.wait()
            await log.end()
        finally:
            await process.end(0.0)
        if status:
            raise CannotSend(f"proto: {proto} cannot be compiled: {log.text}")
        return [file.SerializeToString() for file in FileDescriptorSet.FromString(out.read_bytes()).file]


def _method_in(files: Sequence[bytes], name: str) -> Any:
    """Return the description of a method. Raises CannotSend."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.descriptor_pool import DescriptorPool

    known = [FileDescriptorProto.FromString(each) for each in files]
    pool, by_name = DescriptorPool(), {file.name: file for file in known}
    incomplete = f"method: the description of {name} is not complete:"
    try:
        for each in TopologicalSorter({file.name: file.dependency for file in known}).static_order():
            pool.Add(by_name[each])
    except CycleError as error:
        raise CannotSend(f"{incomplete} the imports of {error.args[1][0]} form a cycle") from None
    except KeyError as error:
        raise CannotSend(f"{incomplete} {error.args[0]} is missing") from None
    except TypeError as error:
        raise CannotSend(f"method: the description of {name} is not valid: {error}") from None
    service, _, method = name.partition("/")
    try:
        methods = pool.FindServiceByName(service).methods_by_name
    except KeyError:
        raise _unknown_service(name, known) from None
    if method not in methods:
        raise CannotSend(f"method: {service} has no method {method!r}; it has {', '.join(methods)}")
    if methods[method].client_streaming:
        raise CannotSend(f"method: {name} takes a stream of requests; only one request a turn can be sent")
    return methods[method]


async def _services_listed(ask: Callable[..., Awaitable[Any]]) -> list[Any]:
    """Return the descriptions of the files of a server's own services."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    listed = (await ask(list_services="")).list_services_response.service
    own = [each.name for each in listed if not each.name.startswith("grpc.")]
    described = [await ask(file_containing_symbol=each) for each in own[:_MOST_LISTED]]
    answers = [each.file_descriptor_response.file_descriptor_proto for each in described]
    return [FileDescriptorProto.FromString(each) for answer in answers for each in answer]


def _unknown_service(name: str, files: Iterable[Any]) -> CannotSend:
    """Return the error for a method of a service that these descriptions of files do not have."""
    services = ((f"{file.package}.{each.name}".lstrip("."), each) for file in files for each in file.service)
    valid = {f"{service}/{method.name}" for service, each in services for method in each.method}
    return CannotSend(f"method: there is no service {name.partition('/')[0]!r}; {did_you_mean(name, valid)}")


def _encoded(body: Any, method: Any) -> bytes:
    from google.protobuf.json_format import ParseDict, ParseError
    from google.protobuf.message_factory import GetMessageClass

    try:
        data: bytes = ParseDict(
            body, GetMessageClass(method.input_type)(), descriptor_pool=method.containing_service.file.pool
        ).SerializeToString()
    except (ParseError, AttributeError, TypeError) as error:
        fields = ", ".join(field.name for field in method.input_type.fields)
        raise CannotSend(
            f"`body` is not a {method.input_type.full_name}: {error} (its fields are {fields})"
        ) from None
    return data


def _decoded(content: bytes, method: Any) -> Mapping[str, Any]:
    from google.protobuf.json_format import MessageToDict
    from google.protobuf.message import DecodeError
    from google.protobuf.message_factory import GetMessageClass

    try:
        value: Mapping[str, Any] = MessageToDict(
            GetMessageClass(method.output_type).FromString(content),
            preserving_proto_field_name=True,
            always_print_fields_with_no_presence=True,
            descriptor_pool=method.containing_service.file.pool,
        )
    except DecodeError:
        raise AgentError(f"the agent's answer is not a {method.output_type.full_name}") from None
    except TypeError as error:  # a google.protobuf.Any
        raise CannotSend(
            f"the agent's answer has a message of an unknown type ({error}); import it in the file of `proto`"
        ) from None
    return value
