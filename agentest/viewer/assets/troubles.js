// What speaks against a conversation, in words: for its head, for its turns, and for the way to the next one.

const BLAME = {
  agent: "The agent's error",
  mock: "A mock failed, so this says nothing of the agent",
  model: "A model failed, so this says nothing of the agent",
  internal: "Agentest itself failed, so this says nothing of the agent",
};

// [{turn: index or null, what, text}]: the gravest first.
export function troubles(conversation, scenario) {
  const { error, errorSource, unfinishedTurn, invalid, trajectory, labelledFailures } = conversation;
  const { turnEvaluations, goalCompletion, conversationMetrics } = conversation.evaluation;
  const found = [];
  const add = (turn, what, text) => found.push({ turn, what, text });

  if (error) add(unfinishedTurn && unfinishedTurn.turnIndex, BLAME[errorSource], error);
  if (invalid) add(null, "Invalid, so this says nothing of the agent", invalid);
  for (const each of [trajectory, ...conversation.perTurnTrajectory]) {
    if (each && each.matched !== true) add(each.turnIndex, "Tool calls", summaryOf(each));
  }
  for (const { turnIndex, checks } of turnEvaluations) {
    for (const each of checks) if (!each.passed) add(turnIndex, `Check ${each.check}`, each.reason);
  }
  for (const each of conversation.criteria || []) {
    const counts = each.result === "violated" || (each.result === "cannot tell" && each.required);
    if (counts) add(each.turnIndex, `Criterion ${each.result}: ${each.text}`, each.reason);
  }
  for (const each of labelledFailures) {
    const cause = scenario.errors.find((group) => group.occurrences.includes(each.id));
    const root = cause ? ` Root cause: ${cause.label} (${cause.severity}).` : "";
    add(each.turnIndex, `${each.metric}: ${each.label}`, each.reason + root);
  }
  for (const { turnIndex, metrics } of turnEvaluations) low(turnIndex, metrics);
  low(null, { ...(goalCompletion ? { goal_completion: goalCompletion } : {}), ...conversationMetrics });
  return found;

  function low(turn, metrics) {
    for (const [name, result] of Object.entries(metrics)) {
      const limit = scenario.thresholds[name];
      if (result.error) add(turn, `${name} has no score`, result.error);
      if (isBelow(result, limit))
        add(turn, `${name} ${result.outcome || result.value}, below ${limit}`, result.reason);
    }
  }
}

// "passed", "failed" or "errored", as the verdict has it.
export function statusOf(conversation, scenario) {
  const { conversationId: id, invalid, passed, errorSource } = conversation;
  const mine = (scenario.reasons || []).filter((reason) => reason.conversationId === id);
  if (mine.some((reason) => reason.status === "failed")) return "failed";
  if (mine.length || invalid) return "errored";
  if (passed) return "passed";
  return errorSource && errorSource !== "agent" ? "errored" : "failed";
}

// A trajectory's reason without its sides, which are shown by themselves.
export function summaryOf(trajectory) {
  return trajectory.reason.split(/\n(?:expected \(|forbidden: |actual: )/)[0];
}

export function isBelow(result, threshold) {
  return typeof result.value === "number" && result.value < threshold;
}
