/**
 * A rule-based hair-salon booking agent behind the OpenAI chat-completions HTTP shape.
 *
 * The same agent as `agent.py`, message for message, in plain Node without packages. The two files keep the same
 * order and the same names, so that a rule changed in one is easily changed in the other.
 *
 * The agent keeps no state. Every request carries the whole conversation and the answer is worked out from it.
 * It only requests tools; the caller runs them and sends the results with the next request.
 */

import { createServer } from "node:http";
import { parseArgs } from "node:util";

const MODEL = "booking-agent";
const DEFAULT_PORT = "8717";
const MAX_BODY_BYTES = 8 * 1024 * 1024;
const WORDS_PER_DELTA = 4;
const BACKLOG = 512; // hundreds of conversations may begin in the same moment
const KEEP_ALIVE_MS = 10 * 60 * 1000; // Node's 5 seconds would close connections that a client is about to reuse

// --- What the agent says -----------------------------------------------------------------------------------

const GREETING = "Hello! What can I do for you?";
const GOODBYE = "Thank you, and see you soon!";
const FALLBACK = "I can book or cancel appointments at the salon. What would you like to do?";
const REFUSAL = "I'm sorry, I can't help with that. I can book or cancel appointments at the salon.";
const NO_MOVING = "I can't move a booking, but I can cancel it and book a new one. What would you like to do?";
const HOURS = "The salon is open from 9:00 to 17:00, Monday to Saturday.";
const PRICES = "A haircut is 25 euros, colouring is 60 euros and a beard trim is 15 euros.";
const ASK_SERVICE = "Which service would you like: a haircut, colouring or a beard trim?";
const ASK_DATE = "Which day would you like to come?";
const ASK_TIME = "Which time would you like?";
const ASK_REFERENCE = "What is your booking reference? It looks like BK-001.";
const SYSTEM_DOWN = "I'm sorry, the booking system is not answering right now. Please try again later.";
const BOOKING_FAILED = "I'm sorry, the booking could not be made. Please choose another time or try again later.";
const NOTHING_TO_CONFIRM = "There is no booking to confirm yet. Would you like to make one?";
const SMS_SENT = "I have sent you a text message.";
const SMS_FAILED = "I'm sorry, the text message could not be sent.";

// --- What the agent understands (texts are lower-cased first) ----------------------------------------------

/** Global, for `matchAll`; use `matches` to ask whether a text contains a pattern (`test` would keep a position). */
const pattern = (...alternatives) => new RegExp(alternatives.join("|"), "g");
const matches = (words, text) => text.search(words) >= 0;

const INJECTION = pattern(
  String.raw`\b(?:ignore|forget|disregard)\b[^.?!]*\b(?:instructions?|rules|prompt)\b`,
  String.raw`\byou are now\b`,
  String.raw`\bsystem prompt\b`,
  String.raw`\bdeveloper mode\b`,
  String.raw`\bcancel (?:all|every)(?: of)?(?: the)?(?: other)? (?:bookings?|appointments?)\b`,
);
const CANCEL = pattern(String.raw`\bcancel\b`);
const MOVE = pattern(
  String.raw`\breschedule\b`,
  String.raw`\b(?:move|change) (?:my|the|this|that) (?:booking|appointment)\b`,
);
const HOURS_QUESTION = pattern(
  String.raw`\bopening (?:hours|times)\b`,
  String.raw`\byour hours\b`,
  String.raw`\bclosing time\b`,
  String.raw`\b(?:are|is|do|does|will) (?:you|the salon|it) (?:be )?(?:open|close)\b`,
);
const PRICE_QUESTION = pattern(
  String.raw`\bpric(?:es?|ing)\b`,
  String.raw`\bhow much\b(?! time)`,
  String.raw`\bcosts?\b`,
);
const BOOKING_REQUEST = pattern(
  String.raw`\b(?:book|reserve|schedule)\b`,
  String.raw`\b(?:make|need|want|get|like) an? (?:new |another )?(?:booking|appointment)\b`,
);
const BOOKING_TALK = pattern(String.raw`\b(?:booking|appointment|reservation|availability|available)\b`);
const TRY_AGAIN = pattern(String.raw`\btry (?:it |that )?again\b`);
const SMS_REQUEST = pattern(
  String.raw`\bsms\b`,
  String.raw`\btext me\b`,
  String.raw`\btext message\b`,
  String.raw`\bsend me a text\b`,
);
const FAREWELL = pattern(
  String.raw`\b(?:thanks|thank you|thx|cheers|bye|goodbye|see you|that's all|that is all)\b`,
);
const HELLO = pattern(String.raw`\b(?:hi|hello|hey|good (?:morning|afternoon|evening))\b`);

const SERVICES = {
  haircut: pattern(String.raw`\bhair ?cuts?\b`),
  colouring: pattern(String.raw`\bcolou?r(?:ing)?\b`),
  "beard trim": pattern(String.raw`\bbeard trims?\b`, String.raw`\btrim my beard\b`),
};
const ISO_DATE = String.raw`\b\d{4}-\d{2}-\d{2}\b`;
const DATE = pattern(
  String.raw`\b(?:next )?(?:monday|tuesday|wednesday|thursday|friday|saturday|sunday)\b`,
  String.raw`(?<!are you )(?<!doing )\btoday\b`, // "how are you today" names no day
  String.raw`(?<!day after )\btomorrow\b`,
  ISO_DATE,
);
const TIME = pattern(String.raw`(?<![\w:-])(\d{1,2})(?::(\d{2})(?!\d))?(?: ?([ap])\.?m\b)?`);
const REFERENCE = pattern(String.raw`\bbk-[a-z0-9]+\b`);
const PHONE_NUMBER = pattern(String.raw`(?<![\w:-])\+?\d[\d -]{6,}\d`);

const normalise = (text) => text.toLowerCase().replaceAll("’", "'").replace(/[ \t\r\n]+/g, " ");

/** The service named last: people correct themselves ("a haircut, no, a beard trim"). */
function findService(text) {
  const mentions = Object.entries(SERVICES).flatMap(([name, words]) =>
    [...text.matchAll(words)].map((match) => ({ name, start: match.index })),
  );
  return mentions.sort((one, other) => one.start - other.start).at(-1)?.name ?? null;
}

const findDate = (text) => text.match(DATE)?.at(-1) ?? null;

function findTime(text) {
  const times = [...text.matchAll(TIME)].map(([, ...parts]) => clockTime(...parts));
  return times.filter((time) => time !== null).at(-1) ?? null;
}

/** 24-hour time; nothing for a bare number ("2 people") and for times no clock shows. */
function clockTime(hours, minutes, half) {
  if (minutes === undefined && half === undefined) return null;
  let hour = Number(hours);
  const minute = Number(minutes ?? 0);
  if (half !== undefined) {
    if (hour < 1 || hour > 12) return null;
    hour = (hour % 12) + (half === "p" ? 12 : 0);
  }
  return hour < 24 && minute < 60 ? `${twoDigits(hour)}:${twoDigits(minute)}` : null;
}

const twoDigits = (number) => String(number).padStart(2, "0");

const findReference = (text) => text.match(REFERENCE)?.at(-1).toUpperCase() ?? null;

/** Without spaces and hyphens. Dates are taken out first, because they look like short numbers. */
function findPhoneNumber(text) {
  const numbers = text.replace(pattern(ISO_DATE), "|").match(PHONE_NUMBER);
  return numbers?.[0].replace(/[ -]/g, "") ?? null;
}

// --- The conversation so far -------------------------------------------------------------------------------

/** The request cannot be understood; the message goes to the caller. */
class BadRequest extends Error {}

class Utterance {
  constructor(role, text) {
    this.role = role;
    this.text = text;
  }
}

class ToolCall {
  constructor(name, callArguments) {
    this.name = name;
    this.arguments = callArguments;
    this.result = null;
  }

  /** Without an error; a booking also has to come with its reference. */
  get succeeded() {
    if (this.result === null || (this.result.error ?? null) !== null) return false;
    return this.name !== "create_booking" || isFilledText(this.result.booking_id);
  }

  get finishesRequest() {
    return ["create_booking", "cancel_booking"].includes(this.name) && this.succeeded;
  }

  /** The times that check_availability found, or null if its result is not usable. */
  get freeTimes() {
    const slots = this.succeeded ? this.result.slots : null;
    if (!Array.isArray(slots)) return null;
    const times = slots.map((slot) => (typeof slot === "string" ? findTime(normalise(slot)) : null));
    return times.includes(null) ? null : times;
  }
}

class ToolRequest {
  constructor(name, callArguments) {
    this.name = name;
    this.arguments = callArguments;
  }
}

/**
 * What the rules look at.
 *
 * `earlier` is what was said and called before the last user message, back to the last finished booking or
 * cancellation: the next request starts afresh and must not inherit that one's day and time.
 */
class Conversation {
  constructor({ earlier, text, turnCalls, booking, askedForReference }) {
    this.earlier = earlier;
    this.text = text;
    this.turnCalls = turnCalls;
    this.booking = booking;
    this.askedForReference = askedForReference;
  }

  get earlierText() {
    return userText(this.earlier);
  }

  /** All that the user said about the current request; a separator keeps messages apart. */
  get requestText() {
    return `${this.earlierText} | ${this.text}`;
  }

  get inProgress() {
    return namesDetails(this.earlierText);
  }

  turnCall(name) {
    return this.turnCalls.findLast((call) => call.name === name) ?? null;
  }

  lastCheck() {
    const calls = [...toolCalls(this.earlier), ...this.turnCalls];
    return calls.findLast((call) => call.name === "check_availability") ?? null;
  }
}

const namesDetails = (text) => [findService, findDate, findTime].some((find) => find(text) !== null);

const toolCalls = (events) => events.filter((event) => event instanceof ToolCall);

/** Attempts at manipulation are left out: nothing of them may end up in a booking. */
function userText(events) {
  const said = events.filter((event) => event instanceof Utterance && event.role === "user");
  return said
    .map((event) => event.text)
    .filter((text) => !matches(INJECTION, text))
    .join(" | ");
}

/** Split the conversation at the last user message, where the current turn begins. */
function understand(events) {
  const turnStart = events.findLastIndex((event) => event instanceof Utterance && event.role === "user");
  const before = events.slice(0, Math.max(turnStart, 0));
  return new Conversation({
    earlier: sinceLastFinished(before),
    text: events[turnStart]?.text ?? "",
    turnCalls: toolCalls(events.slice(turnStart + 1)),
    booking: standingBooking(toolCalls(before)),
    askedForReference: lastReply(before) === normalise(ASK_REFERENCE),
  });
}

function sinceLastFinished(events) {
  return events.slice(events.findLastIndex((event) => event instanceof ToolCall && event.finishesRequest) + 1);
}

/** The booking made last, unless it was cancelled since. */
function standingBooking(calls) {
  let booking = null;
  for (const call of calls) {
    if (call.name === "create_booking" && call.succeeded) booking = call;
    else if (booking !== null && cancels(call, booking)) booking = null;
  }
  return booking;
}

function cancels(call, booking) {
  const same = call.arguments.booking_id === referenceOf(booking);
  return call.name === "cancel_booking" && call.succeeded && same;
}

function lastReply(events) {
  return events.findLast((event) => event instanceof Utterance && event.role === "assistant")?.text ?? "";
}

const referenceOf = (booking) => booking.result.booking_id;

// --- The rules ---------------------------------------------------------------------------------------------

/** The last user message decides what is wanted. The order of the rules is their priority. */
function answer(conversation) {
  const text = conversation.text;
  if (matches(INJECTION, text)) return REFUSAL;
  if (matches(CANCEL, text) || (conversation.askedForReference && findReference(text))) {
    return cancel(conversation);
  }
  if (matches(MOVE, text) && !conversation.inProgress) return NO_MOVING;
  if (matches(HOURS_QUESTION, text)) return HOURS;
  if (matches(PRICE_QUESTION, text)) return PRICES;
  if (asksToBook(conversation)) return book(conversation);
  if (matches(SMS_REQUEST, text)) return textConfirmation(conversation, conversation.booking);
  if (matches(FAREWELL, text)) return GOODBYE;
  if (matches(BOOKING_TALK, text) || namesDetails(text)) return book(conversation);
  if (matches(HELLO, text)) return GREETING;
  return FALLBACK;
}

/** Right after a booking, a day or a service alone is talk about it ("Thanks, see you on Tuesday!"). */
function asksToBook(conversation) {
  const text = conversation.text;
  if (matches(BOOKING_REQUEST, text) || (conversation.inProgress && matches(TRY_AGAIN, text))) return true;
  return namesDetails(text) && (conversation.inProgress || conversation.booking === null);
}

function book(conversation) {
  const details = conversation.requestText;
  const [service, date, time] = [findService(details), findDate(details), findTime(details)];
  if (service === null) return ASK_SERVICE;
  if (date === null) return ASK_DATE;
  const created = conversation.turnCall("create_booking");
  if (created !== null) return afterBooking(conversation, created);
  const freeTimes = knownFreeTimes(conversation, service, date);
  if (freeTimes === null) return lookUp(conversation, service, date);
  if (freeTimes.length === 0) {
    return `I'm sorry, nothing is free ${onDay(date)}. Which other day would suit you?`;
  }
  if (freeTimes.includes(time)) return new ToolRequest("create_booking", { service, date, time });
  return `${capitalised(onDay(date))} these times are free: ${freeTimes.join(", ")}. ${ASK_TIME}`;
}

/** What the last look-up found, if it was for this service and day: it is not asked twice. */
function knownFreeTimes(conversation, service, date) {
  const check = conversation.lastCheck();
  if (check === null) return null;
  const same = check.arguments.service === service && check.arguments.date === date;
  return same ? check.freeTimes : null;
}

/** One failure may be bad luck and is tried again; two in a turn are an outage. */
function lookUp(conversation, service, date) {
  const tries = conversation.turnCalls.filter((call) => call.name === "check_availability");
  if (tries.length >= 2) return SYSTEM_DOWN;
  return new ToolRequest("check_availability", { service, date });
}

/** Confirm only what the tool confirmed. A text message may have been asked for in the same breath. */
function afterBooking(conversation, created) {
  if (!created.succeeded) return BOOKING_FAILED;
  if (!matches(SMS_REQUEST, conversation.text)) return confirmation(created);
  const reply = textConfirmation(conversation, created);
  return typeof reply === "string" ? `${confirmation(created)} ${reply}` : reply;
}

function confirmation(booking) {
  const { service, date, time } = booking.arguments;
  return `Your ${service} is booked for ${date} at ${time}. Your reference is ${referenceOf(booking)}.`;
}

function textConfirmation(conversation, booking) {
  if (booking === null) return NOTHING_TO_CONFIRM;
  const sent = conversation.turnCall("send_sms");
  if (sent !== null) return sent.succeeded ? SMS_SENT : SMS_FAILED;
  const number = findPhoneNumber(conversation.text) ?? "unknown";
  return new ToolRequest("send_sms", { to: number, text: confirmation(booking) });
}

function cancel(conversation) {
  const reference = findReference(conversation.requestText);
  if (reference === null) return ASK_REFERENCE;
  const cancelled = conversation.turnCall("cancel_booking");
  if (cancelled === null) return new ToolRequest("cancel_booking", { booking_id: reference });
  if (cancelled.succeeded) return `Your booking ${reference} is cancelled.`;
  return `I'm sorry, I could not cancel booking ${reference}. Please check the reference.`;
}

const onDay = (date) => (["today", "tomorrow"].includes(date) ? date : `on ${date}`);

const capitalised = (text) => text[0].toUpperCase() + text.slice(1);

// --- Reading a request -------------------------------------------------------------------------------------

function parseObject(text) {
  try {
    const value = JSON.parse(text);
    return isObject(value) ? value : null;
  } catch {
    return null;
  }
}

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

const isFilledText = (value) => typeof value === "string" && value !== "";

function require(condition, message) {
  if (!condition) throw new BadRequest(message);
}

function readRequest(body) {
  const request = parseObject(decodeUtf8(body));
  require(request !== null, "The body must be a JSON object.");
  const { messages, stream } = request;
  require(Array.isArray(messages) && messages.length > 0, "'messages' must be a list that is not empty.");
  require(typeof (stream ?? false) === "boolean", "'stream' must be true or false.");
  return request;
}

/** Strict, like Python's: bytes that are not UTF-8 are no text, and so no JSON either. */
function decodeUtf8(bytes) {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    return "";
  }
}

/** The messages as utterances and tool calls, each call with its result. */
function readEvents(messages) {
  const events = [];
  const callsById = new Map();
  for (const [position, message] of messages.entries()) {
    const where = `messages[${position}]`;
    require(isObject(message), `${where} must be an object.`);
    const role = message.role;
    const text = readContent(message, where);
    if (role === "tool") {
      const call = callsById.get(message.tool_call_id);
      require(call !== undefined, `${where}.tool_call_id names no earlier tool call.`);
      call.result = parseObject(text) ?? { error: "unreadable result" };
    } else if (role === "user" || role === "assistant") {
      if (text || role === "user") events.push(new Utterance(role, normalise(text)));
      for (const [callId, call] of readToolCalls(message, where)) {
        callsById.set(callId, call);
        events.push(call);
      }
    } else {
      require(role === "system" || role === "developer", `${where}.role is not known.`);
    }
  }
  for (const [callId, call] of callsById) {
    require(call.result !== null, `Tool call ${callId} has no result.`);
  }
  return events;
}

function readContent(message, where) {
  const content = message.content ?? null;
  if (typeof content === "string") return content;
  if (content === null && message.role === "assistant") return "";
  const isParts = Array.isArray(content) && content.every(isObject);
  require(isParts, `${where}.content must be a text or a list of parts.`);
  return content
    .filter((part) => typeof part.text === "string")
    .map((part) => part.text)
    .join(" ");
}

function readToolCalls(message, where) {
  const calls = message.tool_calls ?? null;
  if (message.role !== "assistant" || calls === null) return [];
  require(Array.isArray(calls), `${where}.tool_calls must be a list.`);
  return calls.map((call, position) => readToolCall(call, `${where}.tool_calls[${position}]`));
}

function readToolCall(call, where) {
  const { id, function: calledFunction } = isObject(call) ? call : {};
  require(isObject(calledFunction) && isFilledText(id), `${where} must have an id and a function.`);
  const { name, arguments: text } = calledFunction;
  const parsed = typeof text === "string" ? parseObject(text) : null;
  require(
    typeof name === "string" && parsed !== null,
    `${where}.function must have a name and a JSON object as arguments.`,
  );
  return [id, new ToolCall(name, parsed)];
}

// --- Writing the answer ------------------------------------------------------------------------------------

/**
 * The whole answer in the shape of a chat completion.
 *
 * Identifiers count instead of being random, and `created` is fixed: the same request gets the same bytes.
 */
function complete(request) {
  const messages = request.messages;
  const events = readEvents(messages);
  const reply = answer(understand(events));
  const isText = typeof reply === "string";
  const message = isText ? textMessage(reply) : toolCallMessage(reply, `call_${toolCalls(events).length + 1}`);
  return {
    id: `chatcmpl-${messages.length}`,
    object: "chat.completion",
    created: 0,
    model: MODEL,
    choices: [{ index: 0, message, finish_reason: isText ? "stop" : "tool_calls" }],
    usage: usage(messages, message),
  };
}

const textMessage = (text) => ({ role: "assistant", content: text });

function toolCallMessage(request, callId) {
  const calledFunction = { name: request.name, arguments: JSON.stringify(request.arguments) };
  const call = { id: callId, type: "function", function: calledFunction };
  return { role: "assistant", content: null, tool_calls: [call] };
}

/** Words, not tokens: there is no tokenizer here, and callers only need numbers that grow with a text. */
function usage(messages, reply) {
  const prompt = messages.reduce((sum, message) => sum + countWords(readContent(message, "")), 0);
  const callArguments = (reply.tool_calls ?? []).map((call) => call.function.arguments);
  const completion = countWords([reply.content ?? "", ...callArguments].join(" "));
  return { prompt_tokens: prompt, completion_tokens: completion, total_tokens: prompt + completion };
}

const countWords = (text) => text.match(/[^ \t\r\n]+/g)?.length ?? 0;

/** The answer as server-sent events: text in pieces, a tool call's arguments in two halves. */
function streamEvents(completion, withUsage) {
  const { usage: counts, ...rest } = completion;
  const choice = completion.choices[0];
  const head = { ...rest, object: "chat.completion.chunk" };
  const chunks = deltas(choice.message).map((delta) => ({
    ...head,
    choices: [{ index: 0, delta, finish_reason: null }],
  }));
  chunks.push({ ...head, choices: [{ index: 0, delta: {}, finish_reason: choice.finish_reason }] });
  if (withUsage) chunks.push({ ...head, choices: [], usage: counts });
  return [...chunks.map((chunk) => `data: ${JSON.stringify(chunk)}\n\n`), "data: [DONE]\n\n"];
}

function deltas(message) {
  if (message.content !== null) {
    const pieces = textPieces(message.content).map((piece) => ({ content: piece }));
    return [{ role: "assistant", content: "" }, ...pieces];
  }
  const halves = message.tool_calls.flatMap((call, index) => toolCallHalves(index, call));
  return [{ role: "assistant", content: null }, ...halves.map((half) => ({ tool_calls: [half] }))];
}

function textPieces(text) {
  const words = text.split(" ");
  const pieces = [];
  for (let start = 0; start < words.length; start += WORDS_PER_DELTA) {
    pieces.push((start ? " " : "") + words.slice(start, start + WORDS_PER_DELTA).join(" "));
  }
  return pieces;
}

function toolCallHalves(index, call) {
  const text = call.function.arguments;
  const middle = Math.floor(text.length / 2);
  return [
    { ...call, index, function: { ...call.function, arguments: text.slice(0, middle) } },
    { index, function: { arguments: text.slice(middle) } },
  ];
}

// --- HTTP --------------------------------------------------------------------------------------------------

async function handleRequest(request, response) {
  try {
    route(request, response, await readBody(request, response));
  } catch (error) {
    if (error instanceof BadRequest) sendJson(response, 400, errorBody(error.message));
    else if (!request.destroyed || request.complete) throw error; // a client that went away is no error
  }
}

function route(request, response, body) {
  const endpoint = `${request.method} ${request.url.split("?")[0]}`;
  if (endpoint === "GET /health") sendJson(response, 200, { status: "ok" });
  else if (endpoint === "POST /v1/chat/completions") sendCompletion(response, readRequest(body));
  else sendJson(response, 404, errorBody(`There is no ${endpoint}.`));
}

async function readBody(request, response) {
  const length = Number(request.headers["content-length"] ?? 0);
  if ("transfer-encoding" in request.headers || length > MAX_BODY_BYTES) {
    response.setHeader("Connection", "close"); // the unread body would be taken for the next request
    throw new BadRequest(`The body must have a Content-Length of at most ${MAX_BODY_BYTES} bytes.`);
  }
  const chunks = [];
  for await (const chunk of request) chunks.push(chunk);
  return Buffer.concat(chunks);
}

function sendCompletion(response, request) {
  const completion = complete(request);
  if (!request.stream) {
    sendJson(response, 200, completion);
    return;
  }
  const events = streamEvents(completion, request.stream_options?.include_usage === true);
  startResponse(response, 200, "text/event-stream", Buffer.byteLength(events.join("")));
  for (const event of events) response.write(event);
  response.end();
}

/** Node sends headers and body in one write when `end` gets the whole body. */
function sendJson(response, status, body) {
  const data = Buffer.from(JSON.stringify(body));
  startResponse(response, status, "application/json", data.length);
  response.end(data);
}

function startResponse(response, status, contentType, length) {
  response.writeHead(status, { "Content-Type": contentType, "Content-Length": length });
}

const errorBody = (message) => ({ error: { message } });

function main() {
  const { values } = parseArgs({ options: { port: { type: "string", default: DEFAULT_PORT } } });
  const server = createServer({ noDelay: true, keepAliveTimeout: KEEP_ALIVE_MS }, handleRequest);
  for (const stopSignal of ["SIGTERM", "SIGINT"]) process.on(stopSignal, () => process.exit(0));
  server.on("error", (error) => {
    console.error(`Cannot listen on port ${values.port}: ${error.message}`);
    process.exit(1);
  });
  server.listen({ host: "127.0.0.1", port: Number(values.port), backlog: BACKLOG }, () => {
    console.log(`booking-agent listening on http://127.0.0.1:${server.address().port}`);
  });
}

main();
