// The source of `agentest ui`: its server is asked, with the token that the first address had.

import { read } from "./address.js";
import { ask, attend, keepToken } from "./client.js";
import { use } from "./source.js";
import { saveConversation } from "./talk_save.js";

// Every view of a run has its id in the address as `of`; without it the latest is meant.
export function enter() {
  const chooseRun = () => use(httpSource(read().params.of || "latest"));
  keepToken();
  chooseRun();
  addEventListener("hashchange", chooseRun);
}

function httpSource(run) {
  const base = `/api/runs/${encodeURIComponent(run)}`;
  const query = (values) => new URLSearchParams(values).toString();
  let seen = null;

  async function overview() {
    const found = await ask(base);
    seen = found.run.mark;
    return found;
  }

  // A list that has `more` where not all are in it.
  async function search(text, signal) {
    const found = await ask(`${base}/search?${query({ text })}`, { signal });
    return Object.assign(found.hits, { more: found.more });
  }

  const changes = (listener) =>
    attend(`${base}/events`, (event) => (event.type === "changed" && event.mark === seen) || listener(event));

  return {
    served: true,
    run,
    overview,
    scenario: (name, agent, more) => ask(`${base}/scenario?${query({ name, agent, ...more })}`),
    conversation: (name, agent, id, more) => ask(`${base}/conversation?${query({ name, agent, id, ...more })}`),
    search,
    ofRun: async (id) => httpSource(id),
    save: ({ name, file }, agent, id) => {
      const path = `${base}/save?${query({ name, agent, id })}`;
      saveConversation({ scenario: name, file }, (body) => ask(path, { method: "POST", body }));
    },
    compare: (params) => ask(`/api/compare?${query(params)}`),
    changes,
  };
}
