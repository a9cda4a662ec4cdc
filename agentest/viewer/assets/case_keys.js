// The keys of a case in the spelling of its file: both are read, and a new key is spelt as the file spells it.

export function camelCase(name) {
  return name.replace(/_([a-z])/g, (_, letter) => letter.toUpperCase());
}

function present(holder, name) {
  if (name in holder) return name;
  return camelCase(name) in holder ? camelCase(name) : null;
}

export function get(holder, name) {
  const key = holder && typeof holder === "object" ? present(holder, name) : null;
  return key === null ? undefined : holder[key];
}

// `undefined` takes the key out. Keys of the file keep their place.
export function put(holder, name, value, camel) {
  const key = present(holder, name) || (camel ? camelCase(name) : name);
  if (value === undefined) delete holder[key];
  else holder[key] = value;
  return value;
}

// What a value holds besides the keys that are edited; null where that is nothing.
export function rest(holder, names) {
  const known = new Set(names.flatMap((name) => [name, camelCase(name)]));
  const kept = Object.entries(holder).filter(([key]) => !known.has(key));
  return kept.length ? Object.fromEntries(kept) : null;
}

export function isObject(value) {
  return value !== null && typeof value === "object" && !Array.isArray(value);
}

export function newTurn(camel) {
  const made = {};
  put(made, "user_content", message("user"), camel);
  return made;
}

export function message(role, text = "") {
  return { role, parts: [{ text }] };
}

export function newCase(id, simulated, camel) {
  const made = {};
  put(made, "eval_id", id, camel);
  if (!simulated) put(made, "conversation", [newTurn(camel)], camel);
  else {
    const scenario = put(made, "conversation_scenario", {}, camel);
    put(scenario, "starting_prompt", "", camel);
    put(scenario, "conversation_plan", "", camel);
  }
  return made;
}
