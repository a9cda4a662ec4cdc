// What is looked at stands in the address, behind `#`: it can be copied, and the browser's way back works.

// Views that another page of the server has, each with the path of that page.
const elsewhere = new Map();

export function isElsewhere(path, view) {
  elsewhere.set(view, path);
}

export function read() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const params = {};
  for (const [key, value] of new URLSearchParams(query || "")) params[key] = value;
  return { view: path || "", params };
}

// Parameters that are empty are left out.
export function address(view, params = {}) {
  const kept = Object.entries(params).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const query = new URLSearchParams(kept.map(([key, value]) => [key, String(value)])).toString();
  return `${elsewhere.get(view) || ""}#/${view}${query && "?"}${query}`;
}

export function go(view, params = {}) {
  location.assign(address(view, params));
}

// The address of the same view with other parameters. It takes the place of the present one in the history.
export function amend(changes) {
  const { view, params } = read();
  history.replaceState(null, "", address(view, { ...params, ...changes }));
  dispatchEvent(new HashChangeEvent("hashchange"));
}

// The same as `amend`, for what shows its change itself: nothing is drawn anew.
export function note(changes) {
  const { view, params } = read();
  history.replaceState(null, "", address(view, { ...params, ...changes }));
}
