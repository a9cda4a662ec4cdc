// Keys of a case in the spelling of its file: both are read, and a new one is spelt as the file spells them.

export function camelCase(name) {
  return name.replace(/_([a-z])/g, (_, letter) => letter.toUpperCase());
}

function present(holder, name) {
  return [name, camelCase(name)].find((key) => key in holder);
}

export function isObject(value) {
  return value !== null && typeof value === "object" && !Array.isArray(value);
}

export function get(holder, name) {
  return isObject(holder) && name ? holder[present(holder, name)] : undefined;
}

// `undefined` takes the key out.
export function put(holder, name, value, camel) {
  const key = present(holder, name) || (camel ? camelCase(name) : name);
  if (value === undefined) delete holder[key];
  else holder[key] = value;
}

// What an object holds besides these keys; null where that is nothing.
export function rest(holder, names) {
  const kept = Object.entries(holder).filter(([key]) => !names.some((name) => key === name || key === camelCase(name)));
  return kept.length ? Object.fromEntries(kept) : null;
}

// The value with all its keys as the file spells them.
export function spelt(value, camel) {
  if (Array.isArray(value)) return value.map((each) => spelt(each, camel));
  if (!camel || !isObject(value)) return structuredClone(value);
  return Object.fromEntries(Object.entries(value).map(([key, each]) => [camelCase(key), spelt(each, camel)]));
}
