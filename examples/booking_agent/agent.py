"""A rule-based hair-salon booking agent behind the OpenAI chat-completions HTTP shape.

It needs no API key, no network and no packages, and the same conversation always gets the same answer: an
agent to try a test runner on. `agent.mjs` is the same agent in JavaScript. The two files keep the same order
and the same names, so that a rule changed in one is easily changed in the other.

The agent keeps no state. Every request carries the whole conversation and the answer is worked out from it.
It only requests tools; the caller runs them and sends the results with the next request.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MODEL = "booking-agent"
DEFAULT_PORT = 8717
MAX_BODY_BYTES = 8 * 1024 * 1024
WORDS_PER_DELTA = 4

# --- What the agent says ---------------------------------------------------------------------------------

GREETING = "Hello! What can I do for you?"
GOODBYE = "Thank you, and see you soon!"
FALLBACK = "I can book or cancel appointments at the salon. What would you like to do?"
REFUSAL = "I'm sorry, I can't help with that. I can book or cancel appointments at the salon."
NO_MOVING = "I can't move a booking, but I can cancel it and book a new one. What would you like to do?"
HOURS = "The salon is open from 9:00 to 17:00, Monday to Saturday."
PRICES = "A haircut is 25 euros, colouring is 60 euros and a beard trim is 15 euros."
ASK_SERVICE = "Which service would you like: a haircut, colouring or a beard trim?"
ASK_DATE = "Which day would you like to come?"
ASK_TIME = "Which time would you like?"
ASK_REFERENCE = "What is your booking reference? It looks like BK-001."
SYSTEM_DOWN = "I'm sorry, the booking system is not answering right now. Please try again later."
BOOKING_FAILED = "I'm sorry, the booking could not be made. Please choose another time or try again later."
NOTHING_TO_CONFIRM = "There is no booking to confirm yet. Would you like to make one?"
SMS_SENT = "I have sent you a text message."
SMS_FAILED = "I'm sorry, the text message could not be sent."

# --- What the agent understands (texts are lower-cased first) --------------------------------------------


def pattern(*alternatives: str) -> re.Pattern[str]:
    """ASCII only, because JavaScript's `\\b`, `\\d` and `\\w` are."""
    return re.compile("|".join(alternatives), re.ASCII)


INJECTION = pattern(
    r"\b(?:ignore|forget|disregard)\b[^.?!]*\b(?:instructions?|rules|prompt)\b",
    r"\byou are now\b",
    r"\bsystem prompt\b",
    r"\bdeveloper mode\b",
    r"\bcancel (?:all|every)(?: of)?(?: the)?(?: other)? (?:bookings?|appointments?)\b",
)
CANCEL = pattern(r"\bcancel\b")
MOVE = pattern(r"\breschedule\b", r"\b(?:move|change) (?:my|the|this|that) (?:booking|appointment)\b")
HOURS_QUESTION = pattern(
    r"\bopening (?:hours|times)\b",
    r"\byour hours\b",
    r"\bclosing time\b",
    r"\b(?:are|is|do|does|will) (?:you|the salon|it) (?:be )?(?:open|close)\b",
)
PRICE_QUESTION = pattern(r"\bpric(?:es?|ing)\b", r"\bhow much\b(?! time)", r"\bcosts?\b")
BOOKING_REQUEST = pattern(
    r"\b(?:book|reserve|schedule)\b",
    r"\b(?:make|need|want|get|like) an? (?:new |another )?(?:booking|appointment)\b",
)
BOOKING_TALK = pattern(r"\b(?:booking|appointment|reservation|availability|available)\b")
TRY_AGAIN = pattern(r"\btry (?:it |that )?again\b")
SMS_REQUEST = pattern(r"\bsms\b", r"\btext me\b", r"\btext message\b", r"\bsend me a text\b")
FAREWELL = pattern(r"\b(?:thanks|thank you|thx|cheers|bye|goodbye|see you|that's all|that is all)\b")
HELLO = pattern(r"\b(?:hi|hello|hey|good (?:morning|afternoon|evening))\b")

SERVICES = {
    "haircut": pattern(r"\bhair ?cuts?\b"),
    "colouring": pattern(r"\bcolou?r(?:ing)?\b"),
    "beard trim": pattern(r"\bbeard trims?\b", r"\btrim my beard\b"),
}
ISO_DATE = r"\b\d{4}-\d{2}-\d{2}\b"
DATE = pattern(
    r"\b(?:next )?(?:monday|tuesday|wednesday|thursday|friday|saturday|sunday)\b",
    r"(?<!are you )(?<!doing )\btoday\b",  # "how are you today" names no day
    r"(?<!day after )\btomorrow\b",
    ISO_DATE,
)
TIME = pattern(r"(?<![\w:-])(\d{1,2})(?::(\d{2})(?!\d))?(?: ?([ap])\.?m\b)?")
REFERENCE = pattern(r"\bbk-[a-z0-9]+\b")
PHONE_NUMBER = pattern(r"(?<![\w:-])\+?\d[\d -]{6,}\d")


def normalise(text: str) -> str:
    return re.sub(r"[ \t\r\n]+", " ", text.lower().replace("’", "'"))


def find_service(text: str) -> str | None:
    """The service named last: people correct themselves ("a haircut, no, a beard trim")."""
    mentions = [(match.start(), name) for name, words in SERVICES.items() for match in words.finditer(text)]
    return max(mentions)[1] if mentions else None


def find_date(text: str) -> str | None:
    dates = DATE.findall(text)
    return dates[-1] if dates else None


def find_time(text: str) -> str | None:
    times = [time for match in TIME.finditer(text) if (time := clock_time(*match.groups()))]
    return times[-1] if times else None


def clock_time(hours: str, minutes: str | None, half: str | None) -> str | None:
    """24-hour time; nothing for a bare number ("2 people") and for times no clock shows."""
    if minutes is None and half is None:
        return None
    hour, minute = int(hours), int(minutes or 0)
    if half is not None:
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + (12 if half == "p" else 0)
    return f"{hour:02}:{minute:02}" if hour < 24 and minute < 60 else None


def find_reference(text: str) -> str | None:
    references = REFERENCE.findall(text)
    return references[-1].upper() if references else None


def find_phone_number(text: str) -> str | None:
    """Without spaces and hyphens. Dates are taken out first, because they look like short numbers."""
    number = PHONE_NUMBER.search(re.sub(ISO_DATE, "|", text))
    return re.sub(r"[ -]", "", number[0]) if number else None


# --- The conversation so far -----------------------------------------------------------------------------


class BadRequest(Exception):
    """The request cannot be understood; the message goes to the caller."""


@dataclass(frozen=True)
class Utterance:
    role: str
    text: str


@dataclass
class ToolCall:
    name: str
    arguments: dict[str, Any]
    result: dict[str, Any] | None = None

    @property
    def succeeded(self) -> bool:
        """Without an error; a booking also has to come with its reference."""
        if self.result is None or self.result.get("error") is not None:
            return False
        return self.name != "create_booking" or is_filled_text(self.result.get("booking_id"))

    @property
    def finishes_request(self) -> bool:
        return self.name in ("create_booking", "cancel_booking") and self.succeeded

    @property
    def free_times(self) -> list[str] | None:
        """The times that check_availability found, or nothing if its result is not usable."""
        slots = self.result.get("slots") if self.succeeded and self.result else None
        if not isinstance(slots, list):
            return None
        times = [find_time(normalise(slot)) if isinstance(slot, str) else None for slot in slots]
        return None if None in times else [time for time in times if time]


@dataclass(frozen=True)
class ToolRequest:
    name: str
    arguments: dict[str, str]


Event = Utterance | ToolCall
Reply = str | ToolRequest


@dataclass(frozen=True)
class Conversation:
    """What the rules look at.

    `earlier` is what was said and called before the last user message, back to the last finished booking or
    cancellation: the next request starts afresh and must not inherit that one's day and time.
    """

    earlier: list[Event]
    text: str
    turn_calls: list[ToolCall]
    booking: ToolCall | None
    asked_for_reference: bool

    @property
    def earlier_text(self) -> str:
        return user_text(self.earlier)

    @property
    def request_text(self) -> str:
        """All that the user said about the current request; a separator keeps messages apart."""
        return f"{self.earlier_text} | {self.text}"

    @property
    def in_progress(self) -> bool:
        return names_details(self.earlier_text)

    def turn_call(self, name: str) -> ToolCall | None:
        return next((call for call in reversed(self.turn_calls) if call.name == name), None)

    def last_check(self) -> ToolCall | None:
        calls = [*tool_calls(self.earlier), *self.turn_calls]
        return next((call for call in reversed(calls) if call.name == "check_availability"), None)


def names_details(text: str) -> bool:
    return any(find(text) is not None for find in (find_service, find_date, find_time))


def tool_calls(events: list[Event]) -> list[ToolCall]:
    return [event for event in events if isinstance(event, ToolCall)]


def user_text(events: list[Event]) -> str:
    """Attempts at manipulation are left out: nothing of them may end up in a booking."""
    said = [event.text for event in events if isinstance(event, Utterance) and event.role == "user"]
    return " | ".join(text for text in said if not INJECTION.search(text))


def understand(events: list[Event]) -> Conversation:
    """Split the conversation at the last user message, where the current turn begins."""
    before: list[Event] = []
    text, turn = "", events
    for position, event in enumerate(events):
        if isinstance(event, Utterance) and event.role == "user":
            before, text, turn = events[:position], event.text, events[position + 1 :]
    return Conversation(
        earlier=since_last_finished(before),
        text=text,
        turn_calls=tool_calls(turn),
        booking=standing_booking(tool_calls(before)),
        asked_for_reference=last_reply(before) == normalise(ASK_REFERENCE),
    )


def since_last_finished(events: list[Event]) -> list[Event]:
    start = 0
    for position, event in enumerate(events):
        if isinstance(event, ToolCall) and event.finishes_request:
            start = position + 1
    return events[start:]


def standing_booking(calls: list[ToolCall]) -> ToolCall | None:
    """The booking made last, unless it was cancelled since."""
    booking = None
    for call in calls:
        if call.name == "create_booking" and call.succeeded:
            booking = call
        elif booking and cancels(call, booking):
            booking = None
    return booking


def cancels(call: ToolCall, booking: ToolCall) -> bool:
    same = call.arguments.get("booking_id") == reference_of(booking)
    return call.name == "cancel_booking" and call.succeeded and same


def last_reply(events: list[Event]) -> str:
    said = [event.text for event in events if isinstance(event, Utterance) and event.role == "assistant"]
    return said[-1] if said else ""


def reference_of(booking: ToolCall) -> str:
    return str((booking.result or {})["booking_id"])


# --- The rules -------------------------------------------------------------------------------------------


def answer(conversation: Conversation) -> Reply:
    """The last user message decides what is wanted. The order of the rules is their priority."""
    text = conversation.text
    if INJECTION.search(text):
        return REFUSAL
    if CANCEL.search(text) or (conversation.asked_for_reference and find_reference(text)):
        return cancel(conversation)
    if MOVE.search(text) and not conversation.in_progress:
        return NO_MOVING
    if HOURS_QUESTION.search(text):
        return HOURS
    if PRICE_QUESTION.search(text):
        return PRICES
    if asks_to_book(conversation):
        return book(conversation)
    if SMS_REQUEST.search(text):
        return text_confirmation(conversation, conversation.booking)
    if FAREWELL.search(text):
        return GOODBYE
    if BOOKING_TALK.search(text) or names_details(text):
        return book(conversation)
    if HELLO.search(text):
        return GREETING
    return FALLBACK


def asks_to_book(conversation: Conversation) -> bool:
    """Right after a booking, a day or a service alone is talk about it ("Thanks, see you on Tuesday!")."""
    text = conversation.text
    if BOOKING_REQUEST.search(text) or (conversation.in_progress and TRY_AGAIN.search(text)):
        return True
    return names_details(text) and (conversation.in_progress or conversation.booking is None)


def book(conversation: Conversation) -> Reply:
    details = conversation.request_text
    service, date, time = find_service(details), find_date(details), find_time(details)
    if service is None:
        return ASK_SERVICE
    if date is None:
        return ASK_DATE
    created = conversation.turn_call("create_booking")
    if created is not None:
        return after_booking(conversation, created)
    free_times = known_free_times(conversation, service, date)
    if free_times is None:
        return look_up(conversation, service, date)
    if not free_times:
        return f"I'm sorry, nothing is free {on_day(date)}. Which other day would suit you?"
    if time in free_times:
        return ToolRequest("create_booking", {"service": service, "date": date, "time": time})
    return f"{capitalised(on_day(date))} these times are free: {', '.join(free_times)}. {ASK_TIME}"


def known_free_times(conversation: Conversation, service: str, date: str) -> list[str] | None:
    """What the last look-up found, if it was for this service and day: it is not asked twice."""
    check = conversation.last_check()
    if check is None:
        return None
    same = check.arguments.get("service") == service and check.arguments.get("date") == date
    return check.free_times if same else None


def look_up(conversation: Conversation, service: str, date: str) -> Reply:
    """One failure may be bad luck and is tried again; two in a turn are an outage."""
    tries = [call for call in conversation.turn_calls if call.name == "check_availability"]
    if len(tries) >= 2:
        return SYSTEM_DOWN
    return ToolRequest("check_availability", {"service": service, "date": date})


def after_booking(conversation: Conversation, created: ToolCall) -> Reply:
    """Confirm only what the tool confirmed. A text message may have been asked for in the same breath."""
    if not created.succeeded:
        return BOOKING_FAILED
    if not SMS_REQUEST.search(conversation.text):
        return confirmation(created)
    reply = text_confirmation(conversation, created)
    return f"{confirmation(created)} {reply}" if isinstance(reply, str) else reply


def confirmation(booking: ToolCall) -> str:
    details = booking.arguments
    return (
        f"Your {details.get('service')} is booked for {details.get('date')} at {details.get('time')}. "
        f"Your reference is {reference_of(booking)}."
    )


def text_confirmation(conversation: Conversation, booking: ToolCall | None) -> Reply:
    if booking is None:
        return NOTHING_TO_CONFIRM
    sent = conversation.turn_call("send_sms")
    if sent is not None:
        return SMS_SENT if sent.succeeded else SMS_FAILED
    number = find_phone_number(conversation.text) or "unknown"
    return ToolRequest("send_sms", {"to": number, "text": confirmation(booking)})


def cancel(conversation: Conversation) -> Reply:
    reference = find_reference(conversation.request_text)
    if reference is None:
        return ASK_REFERENCE
    cancelled = conversation.turn_call("cancel_booking")
    if cancelled is None:
        return ToolRequest("cancel_booking", {"booking_id": reference})
    if cancelled.succeeded:
        return f"Your booking {reference} is cancelled."
    return f"I'm sorry, I could not cancel booking {reference}. Please check the reference."


def on_day(date: str) -> str:
    return date if date in ("today", "tomorrow") else f"on {date}"


def capitalised(text: str) -> str:
    return text[0].upper() + text[1:]


# --- Reading a request -----------------------------------------------------------------------------------


def parse_json(text: str) -> Any:
    """Strict: Python's reader would take NaN and Infinity, which are not JSON."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def parse_object(text: str) -> dict[str, Any] | None:
    try:
        value = parse_json(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def is_filled_text(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def require(condition: bool, message: str) -> None:
    if not condition:
        raise BadRequest(message)


def read_request(body: bytes) -> dict[str, Any]:
    try:
        request = parse_object(body.decode("utf-8"))
    except UnicodeDecodeError:
        request = None
    if request is None:
        raise BadRequest("The body must be a JSON object.")
    messages = request.get("messages")
    require(isinstance(messages, list) and len(messages) > 0, "'messages' must be a list that is not empty.")
    require(isinstance(request.get("stream"), bool | None), "'stream' must be true or false.")
    return request


def read_events(messages: list[Any]) -> list[Event]:
    """The messages as utterances and tool calls, each call with its result."""
    events: list[Event] = []
    calls_by_id: dict[str, ToolCall] = {}
    for position, message in enumerate(messages):
        where = f"messages[{position}]"
        require(isinstance(message, dict), f"{where} must be an object.")
        role = message.get("role")
        text = read_content(message, where)
        if role == "tool":
            call_id = message.get("tool_call_id")
            call = calls_by_id.get(call_id) if isinstance(call_id, str) else None
            if call is None:
                raise BadRequest(f"{where}.tool_call_id names no earlier tool call.")
            result = parse_object(text)
            call.result = {"error": "unreadable result"} if result is None else result
        elif role in ("user", "assistant"):
            if text or role == "user":
                events.append(Utterance(role, normalise(text)))
            for call_id, call in read_tool_calls(message, where):
                calls_by_id[call_id] = call
                events.append(call)
        else:
            require(role in ("system", "developer"), f"{where}.role is not known.")
    for call_id, call in calls_by_id.items():
        require(call.result is not None, f"Tool call {call_id} has no result.")
    return events


def read_content(message: dict[str, Any], where: str) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    if content is None and message.get("role") == "assistant":
        return ""
    is_parts = isinstance(content, list) and all(isinstance(part, dict) for part in content)
    require(is_parts, f"{where}.content must be a text or a list of parts.")
    return " ".join(part["text"] for part in content or [] if isinstance(part.get("text"), str))


def read_tool_calls(message: dict[str, Any], where: str) -> list[tuple[str, ToolCall]]:
    calls = message.get("tool_calls")
    if message.get("role") != "assistant" or calls is None:
        return []
    require(isinstance(calls, list), f"{where}.tool_calls must be a list.")
    return [read_tool_call(call, f"{where}.tool_calls[{position}]") for position, call in enumerate(calls)]


def read_tool_call(call: Any, where: str) -> tuple[str, ToolCall]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not is_filled_text(call.get("id")):
        raise BadRequest(f"{where} must have an id and a function.")
    name, arguments = function.get("name"), function.get("arguments")
    parsed = parse_object(arguments) if isinstance(arguments, str) else None
    if not isinstance(name, str) or parsed is None:
        raise BadRequest(f"{where}.function must have a name and a JSON object as arguments.")
    return call["id"], ToolCall(name, parsed)


# --- Writing the answer ----------------------------------------------------------------------------------


def complete(request: dict[str, Any]) -> dict[str, Any]:
    """The whole answer in the shape of a chat completion.

    Identifiers count instead of being random, and `created` is fixed: the same request gets the same bytes.
    """
    messages = request["messages"]
    events = read_events(messages)
    reply = answer(understand(events))
    if isinstance(reply, str):
        message, finish_reason = text_message(reply), "stop"
    else:
        message, finish_reason = tool_call_message(reply, f"call_{len(tool_calls(events)) + 1}"), "tool_calls"
    return {
        "id": f"chatcmpl-{len(messages)}",
        "object": "chat.completion",
        "created": 0,
        "model": MODEL,
        "choices": [{"index": 0, "message": message, "finish_reason": finish_reason}],
        "usage": usage(messages, message),
    }


def text_message(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def tool_call_message(request: ToolRequest, call_id: str) -> dict[str, Any]:
    arguments = json.dumps(request.arguments, ensure_ascii=False, separators=(",", ":"))
    function = {"name": request.name, "arguments": arguments}
    call = {"id": call_id, "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def usage(messages: list[dict[str, Any]], reply: dict[str, Any]) -> dict[str, int]:
    """Words, not tokens: there is no tokenizer here, and callers only need numbers that grow with a text."""
    prompt = sum(count_words(read_content(message, "")) for message in messages)
    arguments = [call["function"]["arguments"] for call in reply.get("tool_calls", [])]
    completion = count_words(" ".join([reply["content"] or "", *arguments]))
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def count_words(text: str) -> int:
    return len(re.findall(r"[^ \t\r\n]+", text))


def stream_events(completion: dict[str, Any], with_usage: bool) -> list[str]:
    """The answer as server-sent events: text in pieces, a tool call's arguments in two halves."""
    choice = completion["choices"][0]
    head = {**completion, "object": "chat.completion.chunk"}
    del head["usage"]
    chunks: list[dict[str, Any]] = [
        {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        for delta in deltas(choice["message"])
    ]
    end = {"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}
    chunks.append({**head, "choices": [end]})
    if with_usage:
        chunks.append({**head, "choices": [], "usage": completion["usage"]})
    return [*(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks), "data: [DONE]\n\n"]


def deltas(message: dict[str, Any]) -> list[dict[str, Any]]:
    if message["content"] is not None:
        pieces = [{"content": piece} for piece in text_pieces(message["content"])]
        return [{"role": "assistant", "content": ""}, *pieces]
    first: list[dict[str, Any]] = [{"role": "assistant", "content": None}]
    return first + [
        {"tool_calls": [half]}
        for index, call in enumerate(message["tool_calls"])
        for half in tool_call_halves(index, call)
    ]


def text_pieces(text: str) -> list[str]:
    words = text.split(" ")
    starts = range(0, len(words), WORDS_PER_DELTA)
    return [(" " if start else "") + " ".join(words[start : start + WORDS_PER_DELTA]) for start in starts]


def tool_call_halves(index: int, call: dict[str, Any]) -> list[dict[str, Any]]:
    function = call["function"]
    middle = len(function["arguments"]) // 2
    return [
        {**call, "index": index, "function": {**function, "arguments": function["arguments"][:middle]}},
        {"index": index, "function": {"arguments": function["arguments"][middle:]}},
    ]


# --- HTTP ------------------------------------------------------------------------------------------------


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # keeps connections open
    # Headers and body leave together in one write: two small writes wait for each other's acknowledgement.
    wbufsize = -1
    disable_nagle_algorithm = True

    def handle_request(self) -> None:
        try:
            self.route(self.read_body())
        except BadRequest as error:
            self.send_json(400, error_body(str(error)))

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = handle_request

    def route(self, body: bytes) -> None:
        endpoint = f"{self.command} {self.path.split('?')[0]}"
        if endpoint == "GET /health":
            self.send_json(200, {"status": "ok"})
        elif endpoint == "POST /v1/chat/completions":
            self.send_completion(read_request(body))
        else:
            self.send_json(404, error_body(f"There is no {endpoint}."))

    def read_body(self) -> bytes:
        self.wfile.flush()  # "100 Continue", if the client waits for it
        length = self.headers.get("Content-Length", "0")
        chunked = "Transfer-Encoding" in self.headers
        if chunked or not re.fullmatch(r"[0-9]{1,15}", length) or int(length) > MAX_BODY_BYTES:
            self.close_connection = True  # the unread body would be taken for the next request
            raise BadRequest(f"The body must have a Content-Length of at most {MAX_BODY_BYTES} bytes.")
        return self.rfile.read(int(length))

    def send_completion(self, request: dict[str, Any]) -> None:
        completion = complete(request)
        if not request.get("stream"):
            self.send_json(200, completion)
            return
        options = request.get("stream_options")
        with_usage = isinstance(options, dict) and options.get("include_usage") is True
        events = [event.encode() for event in stream_events(completion, with_usage)]
        self.start_response(200, "text/event-stream", sum(map(len, events)))
        for event in events:
            self.wfile.write(event)
            self.wfile.flush()

    def send_json(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.start_response(status, "application/json", len(data))
        self.wfile.write(data)

    def start_response(self, status: int, content_type: str, length: int) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(length))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Quiet: a test run makes thousands of requests."""


class Server(ThreadingHTTPServer):
    request_queue_size = 512  # hundreds of conversations may begin in the same moment

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no error of the agent."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


def error_body(message: str) -> dict[str, Any]:
    return {"error": {"message": message}}


def main() -> None:
    parser = argparse.ArgumentParser(description="A rule-based salon booking agent.")
    parser.add_argument("--port", type=int, default=DEFAULT_PORT, help="0 takes any free port")
    port = parser.parse_args().port
    for stop_signal in (signal.SIGTERM, signal.SIGINT):
        signal.signal(stop_signal, lambda *_: sys.exit(0))
    try:
        server = Server(("127.0.0.1", port), Handler)
    except (OSError, OverflowError) as error:
        sys.exit(f"Cannot listen on port {port}: {error}")
    with server:
        print(f"booking-agent listening on http://127.0.0.1:{server.server_port}", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
