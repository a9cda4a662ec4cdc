// What is asked where a file has changed on the disk while it was edited here.

import { showDialog } from "./app.js";
import { foreign, h } from "./dom.js";
import { copyButton } from "./parts.js";

// `base` is the text that the edit began from, `theirs` what stands there now (null: it is not there any more), `mine`
// what would be written. Resolves to "mine", "theirs" or "".
export function askAboutConflict({ message, gone, base, theirs, mine }) {
  return new Promise((answer) => {
    let chosen = "";
    const choose = (which, label, props) => h("button", { type: "button", ...props, onclick: () => close(which) }, label);
    const close = (which) => {
      chosen = which;
      dialog.close();
    };
    const [about, label] = gone
      ? ["Copy your text, or go on and save it under another name.", ""]
      : theirs === null
        ? ["What you edit is not in the file any more.", "Add mine again"]
        : theirs === base
          ? ["What you edit is as you opened it; something else in the file has changed.", "Save mine, keep the rest"]
          : ["Since you opened it, this has changed:", "Save mine over theirs"];
    const dialog = showDialog(
      "The file has changed on the disk",
      h("p", {}, foreign(message)),
      h("p", {}, about),
      theirs !== null && theirs !== base && changes(base.split("\n"), theirs.split("\n")),
      h(
        "div",
        { class: "row" },
        label && choose("mine", label),
        !gone && choose("theirs", "Take theirs, drop mine"),
        copyButton(mine, "Copy mine"),
        choose("", "Go on editing", { autofocus: true }),
      ),
    );
    dialog.addEventListener("close", () => answer(chosen));
  });
}

// What lies between the lines that are alike at both ends.
function changes(before, after) {
  let start = 0;
  while (start < before.length && before[start] === after[start]) start++;
  let end = 0;
  while (end < Math.min(before.length, after.length) - start && before.at(-1 - end) === after.at(-1 - end)) end++;
  const part = (lines, mark) => lines.slice(start, lines.length - end).map((line) => `${mark} ${line}\n`);
  return h(
    "pre",
    { class: "difference", tabindex: "0" },
    before.slice(Math.max(0, start - 2), start).map((line) => `  ${line}\n`),
    h("del", {}, part(before, "-")),
    h("ins", {}, part(after, "+")),
    before.slice(before.length - end, before.length - end + 2).map((line) => `  ${line}\n`),
  );
}
