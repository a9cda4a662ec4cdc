// Where the views' data come from. They never know whether that is the page itself or a server: both have
//   overview()                         the run in numbers, one row for each scenario (viewer/overview.py)
//   scenario(name, agent, more)        {scenario, conversations: rows, command}
//   conversation(name, agent, id, more) {conversation, script, spans, hidden}; null: its transcript is not here;
//                                      `hidden` says how many credentials are hidden, unless more.credentials is "shown"
//   search(text, signal)               [{name, agent, conversationId}] whose transcripts contain the text
//   compare(params)                    what the Compare view shows; null: this source has nothing to compare
//   ofRun(id)                          the same for another run; null: this source has no other
//   changes(listener)                  reports what is new; returns what ends that
//   save(scenario, agent, id)          asks as what, and where, a conversation is saved; undefined: it cannot be
//   served                             whether a server is there, so that the page can work

let current = null;

export function use(source) {
  current = source;
}

export function source() {
  return current;
}

// An answer, or null where the source has no such thing.
export async function there(answer) {
  try {
    return await answer;
  } catch (error) {
    if (error.status === 404) return null;
    throw error;
  }
}

// What can be done with what is looked at, where a server is there: views show it and never know what it is.

const offers = new Map();

// `make(about)` gives the buttons and links that stand in the head of a view.
export function offer(view, make) {
  offers.set(view, [...(offers.get(view) || []), make]);
}

export function offered(view, about) {
  return (offers.get(view) || []).map((make) => make(about));
}
