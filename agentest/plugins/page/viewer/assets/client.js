// Requests to the server of `agentest ui`, and what it tells by itself.

const KEY = "agentest-token";
const SILENCE_MS = 30000;

// The token comes with the first address and leaves it at once, so that it is in no copied link.
export function keepToken() {
  const params = new URLSearchParams(location.search);
  const token = params.get("token");
  if (!token) return;
  localStorage.setItem(KEY, token);
  history.replaceState(null, "", location.pathname + location.hash);
}

// What the server answered instead of what was asked for: `status`, and its JSON as `body`.
export class Refused extends Error {
  constructor(status, body) {
    super(body && body.error ? body.error : `the server answered with status ${status}`);
    this.status = status;
    this.body = body;
  }
}

// The token of an address that somebody has pasted; null: it is none of a page like this one.
export function tokenIn(text) {
  try {
    const url = new URL(text.trim());
    const ours = url.protocol === "http:" && ["127.0.0.1", "localhost", "[::1]"].includes(url.hostname);
    return ours ? url.searchParams.get("token") : null;
  } catch {
    return null;
  }
}

export async function ask(path, { method = "GET", body, signal } = {}) {
  const response = await request(path, { method, body, signal });
  return response.status === 204 ? null : response.json();
}

async function request(path, { method = "GET", body, signal } = {}) {
  const headers = { Authorization: `Bearer ${localStorage.getItem(KEY)}` };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(path, { method, headers, signal, body: body === undefined ? undefined : JSON.stringify(body) });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, { error: "The server of this page does not answer. Is `agentest ui` still running?" });
  }
  if (response.ok) return response;
  throw new Refused(response.status, await response.json().catch(() => null));
}

// Server-sent events, read by fetch: an EventSource cannot send the token in a header. It connects again until
// it is ended; `listener` gets what each event holds, and `{type: "connection", up: true|false}`.
export function follow(path, listener) {
  const ended = new AbortController();
  let pauseMs = 500;

  // The server says something at least every ten seconds: where it does not, it was stopped, or the machine slept.
  async function once() {
    const response = await request(path, { signal: ended.signal });
    listener({ type: "connection", up: true });
    pauseMs = 500;
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const silence = setTimeout(() => reader.cancel(), SILENCE_MS);
      const { done, value } = await reader.read();
      clearTimeout(silence);
      if (done) return;
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) tell(block);
    }
  }

  function tell(block) {
    const data = block.split("\n").filter((line) => line.startsWith("data: ")).map((line) => line.slice(6)).join("\n");
    if (!data) return;
    const event = JSON.parse(data);
    if (event.type === "over") ended.abort(); // nothing more will come: the server is not asked again
    else listener(event);
  }

  async function keep() {
    while (!ended.signal.aborted) {
      try {
        await once();
      } catch (error) {
        if (ended.signal.aborted) return;
        if ([401, 403, 404].includes(error.status)) return void listener({ type: "connection", up: false, gone: true });
      }
      if (ended.signal.aborted) return;
      listener({ type: "connection", up: false });
      await new Promise((wake) => setTimeout(wake, pauseMs));
      pauseMs = Math.min(pauseMs * 2, 10000);
    }
  }

  keep();
  return () => ended.abort();
}

// The same while the page is looked at: a hidden one needs no stream, and a browser has few connections for one
// server. It begins again, and hears what has changed meanwhile, when the page is looked at again.
export function attend(path, listener) {
  let end = null;
  const turn = () => {
    if (document.hidden && end) end = void end();
    else if (!document.hidden && !end) end = follow(path, listener);
  };
  document.addEventListener("visibilitychange", turn);
  turn();
  return () => {
    document.removeEventListener("visibilitychange", turn);
    if (end) end();
  };
}

// Loads now, and whenever runs or jobs have changed: one after the other, and once for all that came meanwhile.
export async function whenServed(load, signal, failed) {
  let [busy, again] = [true, false];
  async function changed() {
    again = true;
    if (busy) return;
    busy = true;
    while (again && !signal.aborted) {
      again = false;
      await load().catch((error) => signal.aborted || failed(error));
    }
    busy = false;
  }
  addEventListener("served", changed, { signal });
  await load();
  busy = false;
  if (again) await changed();
}
