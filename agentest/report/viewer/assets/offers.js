// What can be done with what is looked at, where a server is there: views show it and never know what it is.

const offers = new Map();

// `make(about)` gives the buttons and links that stand in the head of a view.
export function offer(view, make) {
  offers.set(view, [...(offers.get(view) || []), make]);
}

export function offered(view, about) {
  return (offers.get(view) || []).map((make) => make(about));
}
