// What is asked of the server by a form or a button: where it is refused, it is said beside it.

import { fill, h } from "./dom.js";
import { problem } from "./parts.js";

// Does it, with the button disabled meanwhile; what stands in the way is shown in `said`.
export async function attempt(said, act, button = {}) {
  fill(said);
  button.disabled = true;
  try {
    await act();
  } catch (error) {
    if (error.name !== "AbortError") fill(said, problem(error.message));
  }
  button.disabled = false;
}

export function action(label, act) {
  const said = h("span", { role: "alert" });
  const onclick = () => attempt(said, act, button);
  const button = h("button", { type: "button", class: "small", onclick }, label);
  return Object.assign(h("span.action", button, said), { button });
}
