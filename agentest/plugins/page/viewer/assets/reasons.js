// What speaks against a conversation, in words: for its head, for its turns, and for the way to the next one.

import { isWrong, known } from "./calls.js";

export const BLAME = {
  agent: "The agent's error",
  mock: "A mock failed, not the agent",
  model: "A model failed, not the agent",
  internal: "An error outside the agent",
};

export function allTurns({ turns, unfinishedTurn }) {
  return unfinishedTurn ? [...turns, unfinishedTurn] : turns;
}

// [{turn: index or null, what, text, brief}]: the gravest first; `brief` is the text in a few words, where it has many.
export function troubles(conversation, scenario) {
  const { error, errorSource, unfinishedTurn, invalid, trajectory, labelledFailures } = conversation;
  const { turnEvaluations } = conversation.evaluation;
  const found = [];
  const add = (turn, what, text, brief = "") => found.push({ turn, what, text, brief });

  if (error) add(unfinishedTurn && unfinishedTurn.turnIndex, lacksMock(conversation) ? "A tool without a mock" : BLAME[errorSource], error, briefError(error));
  if (invalid) add(null, "Invalid, so this says nothing of the agent", invalid);
  for (const each of [trajectory, ...conversation.perTurnTrajectory].filter(Boolean)) {
    const calls = allTurns(conversation).filter(({ turnIndex }) => each === trajectory || turnIndex === each.turnIndex).flatMap((turn) => turn.toolCalls);
    for (const part of partsOf(each).filter(({ matched, counted }) => matched !== true && !counted)) {
      const turn = each === trajectory ? firstWrongCall(conversation, part) : each.turnIndex;
      add(turn, part.name ? `Tool calls, ${part.name}` : "Tool calls", summaryOf(part), briefCall(part, calls));
    }
  }
  for (const { turnIndex, checks } of turnEvaluations) {
    for (const each of checks) if (!each.passed) add(turnIndex, `Check ${each.check}`, each.reason);
  }
  for (const { check, passed, reason, turnIndex = null } of conversation.checks || []) {
    if (!passed) add(turnIndex, check === "check" ? "Check" : `Check ${check}`, reason);
  }
  for (const { result, required, turnIndex, text, reason } of conversation.criteria || []) {
    const counts = result === "violated" || (result === "cannot tell" && required);
    if (counts) add(turnIndex, `Criterion ${result}: ${text}`, reason);
  }
  for (const each of labelledFailures) {
    const cause = scenario.errors.find((group) => group.occurrences.includes(each.id));
    const root = cause ? ` Root cause: ${cause.label} (${cause.severity}).` : "";
    add(each.turnIndex, `${each.metric}: ${each.label}`, each.reason + root);
  }
  const whole = { turnIndex: null, metrics: wholeMetrics(conversation) };
  for (const { turnIndex, metrics } of [...turnEvaluations, whole]) {
    for (const [name, { error: unscored, outcome, value, reason }] of Object.entries(metrics)) {
      const limit = scenario.thresholds[name];
      if (unscored) add(turnIndex, `${name} has no score`, unscored);
      else if (isBelow({ value }, limit)) {
        add(turnIndex, `${name} ${outcome || value}, below ${limit}`, reason);
      }
    }
  }
  return found;
}

// Whether a call without a mock ended the conversation: what a server printed meanwhile does not explain it.
export function lacksMock({ error }) {
  return /, which has no mock \(/.test(error);
}

// An answer with an error status, as `ADDRESS answered STATUS (advice): BODY`; {} for any other error.
export function httpError(message) {
  const found = /^(\S+) answered (\d{3})(?: \(([\s\S]*?)\))?: ([\s\S]*)$/.exec(message);
  return found ? { address: found[1], status: found[2], advice: found[3], body: found[4] } : {};
}

function briefError(message) {
  const { status, body } = httpError(message);
  return status ? `status ${status}: ${body}` : "";
}

// The worst first.
const BRIEF = {
  different: (tool, { difference }) => `${tool}: ${difference || "differs"}`,
  forbidden: (tool) => `${tool} was called, which is forbidden`,
  out_of_order: (tool, { difference }) => `${tool}: ${difference || "out of order"}`,
  extra: (tool) => `${tool} was called, which is not expected`,
  missing: (tool) => `${tool} was not called`,
};

// The worst of the first turn with a wrong call; without one, the first call that is missing.
function briefCall({ alignment = [] }, calls) {
  const wrong = alignment.filter((row) => isWrong(row) && BRIEF[row.status]);
  const turn = Math.min(...wrong.filter(({ call }) => known(call)).map(({ call }) => calls[call].turnIndex));
  const there = wrong.filter(({ call }) => known(call) && calls[call].turnIndex === turn);
  const row = Object.keys(BRIEF).flatMap((status) => (there.length ? there : wrong).filter((each) => each.status === status))[0];
  if (!row) return "";
  const tool = known(row.call) ? calls[row.call].name : row.tool || row.expected;
  return BRIEF[row.status](tool, row);
}

// The trajectories that one stands for: itself, where there is one.
export function partsOf(trajectory) {
  return trajectory.parts || [trajectory];
}

// The turn of the first call that a trajectory of the whole objects to; null: it misses calls alone.
function firstWrongCall(conversation, { alignment = [] }) {
  const calls = allTurns(conversation).flatMap((turn) => turn.toolCalls);
  const wrong = alignment.filter((row) => isWrong(row) && known(row.call));
  return wrong.length ? calls[Math.min(...wrong.map((row) => row.call))].turnIndex : null;
}

export function wholeMetrics({ evaluation: { goalCompletion, conversationMetrics } }) {
  return goalCompletion ? { goal_completion: goalCompletion, ...conversationMetrics } : conversationMetrics;
}

// "passed", "failed" or "errored", as the verdict has it; of a row of a list of conversations, too.
export function statusOf({ conversationId, invalid, passed, errorSource }, { reasons = [] }) {
  const mine = reasons.filter((reason) => reason.conversationId === conversationId);
  if (mine.some((reason) => reason.status === "failed")) return "failed";
  if (mine.length || invalid) return "errored";
  if (passed) return "passed";
  return errorSource && errorSource !== "agent" ? "errored" : "failed";
}

// A trajectory's reason without its sides, which are shown by themselves.
export function reasonOf({ reason }) {
  return reason.split(/\n(?:expected \(|forbidden: |actual: )/)[0];
}

// The same with what differs.
function summaryOf(trajectory) {
  const different = (trajectory.alignment || []).filter((row) => row.status === "different" && row.difference);
  const differences = different.map((row) => `${row.tool || row.expected}: ${row.difference}`);
  return [reasonOf(trajectory), ...differences].join("; ");
}

export function isBelow(result, threshold) {
  return typeof result.value === "number" && result.value < threshold;
}
