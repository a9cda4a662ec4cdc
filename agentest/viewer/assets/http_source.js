// The source of `agentest ui`: its server is asked, with the token that the first address had.

import { ask, follow } from "./client.js";

export function httpSource(run) {
  const base = `/api/runs/${encodeURIComponent(run)}`;
  const query = (values) => new URLSearchParams(values).toString();
  return {
    served: true,
    run,
    overview: () => ask(base),
    scenario: (name, agent) => ask(`${base}/scenario?${query({ name, agent })}`),
    conversation: (name, agent, id) => ask(`${base}/conversation?${query({ name, agent, id })}`),
    search: (text, signal) => ask(`${base}/search?${query({ text })}`, { signal }),
    compare: (params) => ask(`/api/compare?${query(params)}`),
    changes: (listener) => follow(`${base}/events`, listener),
  };
}
