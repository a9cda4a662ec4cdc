// The shop's tools, and the script of its agent: what it does next, from the user's texts and the results since the
// last of them. The same as servers/shop.py.
const STOCK = { lamp: 3, chair: 0, sofa: 12 };

export const tools = {
  check_stock: ({ item }) => ({ item, in_stock: STOCK[item] ?? 0 }),
  reserve_item: ({ item, quantity }) => ({ item, quantity, reservation: `R-${item}-${quantity}` }),
  search: ({ query }) => ({ query, found: Object.keys(STOCK).filter((name) => name.includes(query)) }),
  place_order: ({ item }) => ({ ordered: item }),
};

const one = (name, args, results) =>
  results.length ? `${name} says ${JSON.stringify(results.at(-1))}` : { name, args };

function reserve(item, quantity, results) {
  if (results.length === 0) return { name: "check_stock", args: { item } };
  if (results.length === 1) return { name: "reserve_item", args: { item, quantity } };
  return `Reserved ${quantity} ${item}: ${JSON.stringify(results.at(-1))}`;
}

// A call {name, args}, or the reply. Throws when the user says "fail".
export async function nextStep(texts, results) {
  const [word, ...rest] = texts.at(-1).split(" ");
  switch (word) {
    case "stock": return one("check_stock", { item: rest[0] }, results);
    case "search": return one("search", { query: rest.join(" ") }, results);
    case "ask": return one("place_order", { item: rest[0] }, results);
    case "reserve": return reserve(rest[0], Number(rest[1]), results);
    case "recall": return texts.filter((text) => text.startsWith("remember ")).at(-1)?.split(" ")[1] ?? "nothing";
    case "fail": throw new Error("the shop is on fire");
    case "slow": await new Promise((resolve) => setTimeout(resolve, 1000 * Number(rest[0])));
  }
  return `You said: ${texts.at(-1)}`;
}
