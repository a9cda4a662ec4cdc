// What agents do whose tools are elsewhere: the same as servers/errands.py. A round of calls [{name, args}], or the reply.
const stock = (item) => ({ name: "check_stock", args: { item } });

function rounds(word, rest) {
  switch (word) {
    case "stock": return [[stock(rest[0])]];
    case "reserve": return [[stock(rest[0])], [{ name: "reserve_item", args: { item: rest[0], quantity: Number(rest[1]) } }]];
    case "search": return [[{ name: "search", args: { query: rest.join(" ") } }]];
    case "both": return [[stock(rest[0]), stock(rest[1])]];
    case "cancel": return [[{ name: "cancel_order", args: { item: rest[0] } }]];
    case "fail": throw new Error("the shop is on fire");
  }
  return [];
}

export function nextRound(text, results) {
  const [word, ...rest] = text.split(" ");
  let done = 0;
  for (const calls of rounds(word, rest)) {
    if (results.length === done) return calls;
    done += calls.length;
  }
  return results.length ? `${word}: ${results.join(" | ")}` : `You said: ${text}`;
}
