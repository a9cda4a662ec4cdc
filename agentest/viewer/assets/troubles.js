// What speaks against a conversation, in words: for its head, for its turns, and for the way to the next one.

export const BLAME = {
  agent: "The agent's error",
  mock: "A mock failed, so this says nothing of the agent",
  model: "A model failed, so this says nothing of the agent",
  internal: "Agentest itself failed, so this says nothing of the agent",
};

// [{turn: index or null, what, text}]: the gravest first.
export function troubles(conversation, scenario) {
  return [...cut(conversation), ...calls(conversation), ...scoredTurns(conversation, scenario), ...ofAll(conversation, scenario)];
}

// "passed", "failed" or "errored", as the verdict has it.
export function statusOf(conversation, scenario) {
  const mine = (scenario.reasons || []).filter((reason) => reason.conversationId === conversation.conversationId);
  if (mine.some((reason) => reason.status === "failed")) return "failed";
  if (mine.length || conversation.invalid) return "errored";
  if (conversation.passed) return "passed";
  return conversation.errorSource && conversation.errorSource !== "agent" ? "errored" : "failed";
}

// A trajectory's reason without its sides, which are shown by themselves.
export function summaryOf(trajectory) {
  return trajectory.reason.split(/\n(?:expected \(|forbidden: |actual: )/)[0] || trajectory.error || "";
}

export function isBelow(result, threshold) {
  return typeof result.value === "number" && threshold !== undefined && result.value < threshold;
}

function* cut(conversation) {
  const { error, errorSource, unfinishedTurn, invalid } = conversation;
  if (error) yield { turn: unfinishedTurn ? unfinishedTurn.turnIndex : null, what: BLAME[errorSource] || "Error", text: error };
  if (invalid) yield { turn: null, what: "Invalid, so this says nothing of the agent", text: invalid };
}

function* calls(conversation) {
  const { trajectory, perTurnTrajectory } = conversation;
  if (trajectory && trajectory.matched !== true) yield { turn: null, what: "Tool calls", text: summaryOf(trajectory) };
  for (const each of perTurnTrajectory) {
    if (each.matched !== true) yield { turn: each.turnIndex, what: "Tool calls", text: summaryOf(each) };
  }
}

function* scoredTurns(conversation, scenario) {
  const low = [];
  for (const { turnIndex: turn, metrics, checks } of conversation.evaluation.turnEvaluations) {
    for (const check of checks) if (!check.passed) yield { turn, what: `Check ${check.check}`, text: check.reason };
    for (const [name, result] of Object.entries(metrics)) {
      const threshold = scenario.thresholds[name];
      if (isBelow(result, threshold)) low.push({ turn, what: `${name} ${result.value}, below ${threshold}`, text: result.reason });
      if (result.error) low.push({ turn, what: `${name} has no score`, text: result.error });
    }
  }
  yield* conversation.labelledFailures.map((each) => labelled(each, scenario));
  yield* low;
}

function labelled(failure, scenario) {
  const cause = scenario.errors.find((group) => group.occurrences.includes(failure.id));
  const root = cause ? ` Root cause: ${cause.label} (${cause.severity}).` : "";
  return { turn: failure.turnIndex, what: `${failure.metric}: ${failure.label}`, text: failure.reason + root };
}

function* ofAll(conversation, scenario) {
  for (const each of conversation.criteria || []) {
    const untold = each.result === "cannot tell" && each.required;
    if (each.result !== "violated" && !untold) continue;
    yield { turn: each.turnIndex, what: `Criterion ${each.result}: ${each.text}`, text: each.reason };
  }
  const { goalCompletion: goal, conversationMetrics } = conversation.evaluation;
  const whole = Object.entries({ ...(goal ? { goal_completion: goal } : {}), ...conversationMetrics });
  for (const [name, result] of whole) {
    const threshold = scenario.thresholds[name];
    const shown = result.outcome || result.value;
    if (isBelow(result, threshold)) yield { turn: null, what: `${name} ${shown}, below ${threshold}`, text: result.reason };
    if (result.error) yield { turn: null, what: `${name} has no score`, text: result.error };
  }
}
