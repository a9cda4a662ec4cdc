// What is asked where a file has changed on the disk while it was edited here.

import { showDialog } from "./app.js";
import { foreign, h } from "./dom.js";
import { copyButton } from "./parts.js";

// `base` is the text that the edit began from, `theirs` what stands there now, `mine` what would be written; null
// where there is none. Resolves to "mine", "theirs" or "cancel".
export function askAboutConflict({ message, base, theirs, mine, gone }) {
  return new Promise((answer) => {
    let choice = "cancel";
    const choose = (which, label, props = {}) =>
      h("button", { type: "button", ...props, onclick: () => { choice = which; dialog.close(); } }, label);
    const dialog = showDialog(
      "The file has changed on the disk",
      h("p", {}, foreign(message)),
      gone
        ? h("p", {}, "Copy your text, or save it under another name.")
        : theirs === null
          ? h("p", {}, "What you edit is not in the file any more.")
          : theirs === base
            ? h("p", {}, "What you edit is as you opened it: something else in the file has changed.")
            : [h("p", {}, "Since you opened it, this has changed:"), changes(base, theirs)],
      h("div", { class: "row" },
        !gone && choose("mine", theirs === base ? "Save mine, keep the other changes" : theirs === null ? "Add mine again" : "Save mine over theirs"),
        !gone && choose("theirs", "Take theirs, drop mine"),
        copyButton(mine, "Copy mine"),
        choose("cancel", "Go on editing", { autofocus: true })),
    );
    dialog.addEventListener("close", () => answer(choice));
  });
}

// The lines that differ, with two around them.
export function changes(before, after) {
  const lines = difference(before.split("\n"), after.split("\n"));
  const near = lines.map((_, at) => lines.slice(Math.max(0, at - 2), at + 3).some(([mark]) => mark !== " "));
  return h("pre", { class: "difference", tabindex: "0" }, lines.map(([mark, text], at) =>
    near[at] ? h(mark === " " ? "span" : mark === "+" ? "ins" : "del", {}, `${mark} ${text}\n`) : near[at - 1] && "…\n"));
}

// What is alike at both ends stays; of what lies between, the longest common lines, where there are not too many.
function difference(old, now) {
  let start = 0;
  while (start < old.length && start < now.length && old[start] === now[start]) start++;
  let end = 0;
  while (end < old.length - start && end < now.length - start && old.at(-1 - end) === now.at(-1 - end)) end++;
  const middle = between(old.slice(start, old.length - end), now.slice(start, now.length - end));
  const same = (text) => [" ", text];
  return [...old.slice(0, start).map(same), ...middle, ...old.slice(old.length - end).map(same)];
}

function between(old, now) {
  if (old.length * now.length > 1e6) return [...old.map((text) => ["-", text]), ...now.map((text) => ["+", text])];
  const best = Array.from({ length: old.length + 1 }, () => new Uint32Array(now.length + 1));
  for (let i = old.length - 1; i >= 0; i--) {
    for (let j = now.length - 1; j >= 0; j--) {
      best[i][j] = old[i] === now[j] ? best[i + 1][j + 1] + 1 : Math.max(best[i + 1][j], best[i][j + 1]);
    }
  }
  const lines = [];
  let [i, j] = [0, 0];
  while (i < old.length || j < now.length) {
    if (i < old.length && j < now.length && old[i] === now[j]) lines.push([" ", old[i++]]) && j++;
    else if (j === now.length || (i < old.length && best[i + 1][j] >= best[i][j + 1])) lines.push(["-", old[i++]]);
    else lines.push(["+", now[j++]]);
  }
  return lines;
}
