"""The ends of a task that are the agent's error."""

from agentest import scenario

for word in ("failed", "reject", "auth"):
    scenario(word, turns=["hello", word])
