// Whether the server is there: a banner where it is not, and the event `served` where runs or jobs have changed.

import { attend, tokenIn } from "./client.js";
import { fill, h } from "./dom.js";

const banner = h("div.server-state.no-print", { role: "status" });

export function watchServer() {
  document.querySelector("body > header").after(banner);
  const begin = () => attend("/api/events", heard);
  let end = begin();
  // Another tab was given the address of the server that was started anew.
  addEventListener("storage", (event) => event.key === "agentest-token" && (end(), (end = begin())));
}

function heard(event) {
  if (event.type !== "connection") return void dispatchEvent(new CustomEvent("served", { detail: event }));
  if (event.up) fill(banner);
  else if (event.gone) askForAddress();
  else fill(banner, h("p.notice", "The server of this page does not answer. Is `agentest ui` still running? The page goes on when it is back."));
}

function askForAddress() {
  const field = h("input", { type: "url", id: "new-address", autocomplete: "off", placeholder: "http://127.0.0.1:8321/?token=…" });
  const said = h("span", { role: "alert" });
  // The address itself is opened: with it comes the cookie that opens the page again.
  function take(event) {
    event.preventDefault();
    const token = tokenIn(field.value);
    if (!token) return void (said.textContent = "That is not an address of agentest ui.");
    location.assign(`${new URL(field.value.trim()).origin}/?${new URLSearchParams({ token })}${location.hash}`);
  }
  const label = h("label", { for: "new-address" }, "The server was started anew. Open the address that it has printed, or put it here:");
  fill(banner, h("form.notice.row", { novalidate: true, onsubmit: take }, label, field, h("button", "Open"), said));
}
