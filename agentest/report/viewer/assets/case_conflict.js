// What is asked where a file has changed on the disk while it was edited here.

import { showDialog } from "./app.js";
import { aligned } from "./diff.js";
import { foreign, h } from "./dom.js";
import { copyButton } from "./parts.js";

// `base` is the text that the edit began from, `theirs` what stands there now (null: it is not there any more), `mine`
// what would be written. Resolves to "mine", "theirs" or "".
export function askAboutConflict({ message, gone, base, theirs, mine }) {
  const about = theirs === null
    ? "What you edit is not in the file any more."
    : theirs === base
      ? "What you edit is as you opened it; something else in the file has changed."
      : "Since you opened it, this has changed:";
  return new Promise((answer) => {
    const choose = (which, text) => {
      const onclick = () => (dialog.close(), answer(which));
      return h("button", { type: "button", autofocus: !which, onclick }, text);
    };
    const both = [choose("mine", theirs === base ? "Save mine, keep the rest" : "Save mine over theirs"),
      choose("theirs", "Take theirs, drop mine")];
    const dialog = showDialog(
      "The file has changed on the disk",
      h("p", foreign(message), " ", about),
      theirs !== null && theirs !== base && changes(base.split("\n"), theirs.split("\n")),
      h("div.row", !gone && both, copyButton(mine, "Copy mine"), choose("", "Go on editing")),
    );
    dialog.addEventListener("close", () => answer(""));
  });
}

// The lines that differ, with two around them.
function changes(before, after) {
  const pairs = aligned(before, after).map(([x, y]) =>
    x === undefined ? ["ins", `+ ${after[y]}\n`] : y === undefined ? ["del", `- ${before[x]}\n`] : ["span", `  ${before[x]}\n`]);
  const near = (_, n) => pairs.slice(Math.max(0, n - 2), n + 3).some(([tag]) => tag !== "span");
  const lines = pairs.filter(near).map(([tag, line]) => foreign(line, tag));
  return h("pre.difference", { tabindex: "0" }, lines);
}
