// Markdown of agents and users, as elements and texts: no HTML, nothing that is fetched, no link that leaves by
// itself. What is not known here stays as it was written.

import { append, h, visible } from "./dom.js";
import { longText } from "./parts.js";

const MOST_CHARS = 20000;
const MOST_DEPTH = 5; // of quotes
const FENCE = /^\s{0,3}(`{3,}|~{3,})/;
const HEADING = /^#{1,6} (.*)$/;
const ITEM = /^(\s*)(?:[-*+]|\d{1,9}[.)]) (.*)$/;
const QUOTE = /^> ?(.*)$/;
const ROW = /^\|.*\|\s*$/;
const RULE = /^\|[\s:|-]+\|\s*$/;
const SPAN = /`([^`\n]{1,2000})`|\*\*([^*\n]{1,2000})\*\*|(?<![\w*])[*_]([^*_\s][^*_\n]{0,2000})[*_](?![\w*])|(!?)\[([^\]\n]{0,2000})\]\(([^()\s]{1,2000})\)/g;

export function markdown(text, tag) {
  if (text.length > MOST_CHARS) return longText(text, tag);
  return h(`${tag}.foreign`, { dir: "auto" }, blocks(text.replaceAll("\r\n", "\n").split("\n")));
}

function blocks(lines, depth = 0) {
  const found = [];
  let at = 0;
  const take = (pattern) => {
    const from = at;
    while (at < lines.length && pattern.test(lines[at])) at++;
    return lines.slice(from, at);
  };
  while (at < lines.length) {
    const line = lines[at];
    if (!line.trim()) at++;
    else if (FENCE.test(line)) found.push(fenced());
    else if (HEADING.test(line)) found.push(h("p.heading", spans(HEADING.exec(lines[at++])[1])));
    else if (ITEM.test(line)) found.push(items(take(ITEM)));
    else if (QUOTE.test(line) && depth < MOST_DEPTH) found.push(h("blockquote", blocks(take(QUOTE).map((each) => QUOTE.exec(each)[1]), depth + 1)));
    else if (ROW.test(line) && RULE.test(lines[at + 1] || "")) found.push(rows(take(ROW)));
    else found.push(paragraph());
  }
  return found;

  function fenced() {
    const [, mark] = FENCE.exec(lines[at++]);
    const from = at;
    while (at < lines.length && !lines[at].trimStart().startsWith(mark)) at++;
    return longText(lines.slice(from, at++).join("\n"), "pre");
  }

  function paragraph() {
    const from = at++;
    while (at < lines.length && lines[at].trim() && ![FENCE, HEADING, ITEM, ...(depth < MOST_DEPTH ? [QUOTE] : [])].some((each) => each.test(lines[at]))) at++;
    return h("p", spans(lines.slice(from, at).join("\n")));
  }
}

// Items of a deeper level are set in, and each has the mark that was written.
function items(lines) {
  return h("ul.plain", lines.map((line) => {
    const [, indent, text] = ITEM.exec(line);
    const mark = line.trimStart().split(" ")[0].replace(/^[-*+]$/, "•");
    return h("li", { style: { "--depth": Math.min(6, Math.floor(indent.length / 2)) } }, `${mark} `, spans(text));
  }));
}

function rows([head, , ...body]) {
  const cells = (line) => line.trim().slice(1, -1).split("|").map((each) => spans(each.trim()));
  const row = (tag) => (line) => h("tr", cells(line).map((each) => h(tag, each)));
  return h("div.scroll", { tabindex: "0" }, h("table", h("thead", row("th")(head)), h("tbody", body.map(row("td")))));
}

function spans(text) {
  const found = [];
  let from = 0;
  for (const match of text.matchAll(SPAN)) {
    const [whole, code, strong, soft, image, name, target] = match;
    found.push(visible(text.slice(from, match.index)));
    if (code !== undefined) found.push(h("code", visible(code)));
    else if (strong !== undefined) found.push(h("strong", spans(strong)));
    else if (soft !== undefined) found.push(h("em", visible(soft)));
    else found.push(link(whole, image, name, target));
    from = match.index + whole.length;
  }
  return append(h("span"), [found, visible(text.slice(from))]);
}

// Its host is shown, so that the name cannot deceive. An image is a link, too: nothing is loaded.
function link(whole, image, name, target) {
  const url = URL.canParse(target) ? new URL(target) : null;
  if (!url || !["http:", "https:"].includes(url.protocol)) return visible(whole);
  const props = { href: url.href, target: "_blank", rel: "noopener noreferrer nofollow" };
  return [image && "[image] ", h("a", props, visible(name || target)), h("span.quiet", ` ↗ ${visible(url.host)}`)];
}
