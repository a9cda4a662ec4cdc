// Data inside the page: gzip and base64, unpacked when they are opened. The page may still be arriving: what is
// not there yet is waited for, and a file that ends before its data do says so.

const LAST = "end";

function arrived() {
  return document.readyState !== "loading";
}

export function isCut() {
  return arrived() && !document.getElementById(LAST);
}

export const CUT = "This file is cut: it ends before its data do. Get it again, or write it anew: agentest show RUN --reporter html=PATH";

// An element is whole when the next one has begun, or the page has come to its end.
function whole(id) {
  const element = document.getElementById(id);
  return element && (arrived() || document.querySelector(`#${id} ~ script`)) ? element : null;
}

// Calls `look` whenever more of the page has arrived, until that returns true.
function watch(look) {
  if (look()) return;
  const observer = new MutationObserver(again);
  function again() {
    if (!look()) return;
    observer.disconnect();
    document.removeEventListener("readystatechange", again);
  }
  observer.observe(document.body, { childList: true });
  document.addEventListener("readystatechange", again);
}

export function whenArrived() {
  return new Promise((resolve) => watch(() => arrived() && (resolve(), true)));
}

function awaited(id) {
  return new Promise((resolve) => watch(() => (whole(id) || arrived()) && (resolve(whole(id)), true)));
}

// The JSON text of an element; null: the file does not hold it.
export async function unpackText(id) {
  if (!("DecompressionStream" in window)) throw new Error("This browser cannot unpack the data: it needs Chrome 93, Firefox 113, Safari 16.4 or later.");
  const element = await awaited(id);
  if (element === null && isCut()) throw new Error(CUT);
  if (element === null) return null;
  try {
    const stream = new Blob([bytes(element.textContent)]).stream().pipeThrough(new DecompressionStream("gzip"));
    return await new Response(stream).text();
  } catch {
    throw new Error(isCut() ? CUT : "This file is damaged: a part of it cannot be unpacked.");
  }
}

export async function unpack(id) {
  const text = await unpackText(id);
  return text === null ? null : JSON.parse(text);
}

function bytes(base64) {
  const text = atob(base64);
  const made = new Uint8Array(text.length);
  for (let at = 0; at < text.length; at++) made[at] = text.charCodeAt(at);
  return made;
}
