"""What leads the simulated user of an evaluation set."""

from __future__ import annotations

from dataclasses import dataclass

from agentest.config.wishes import ModelWish


@dataclass(frozen=True, slots=True)
class ConversationPlan:
    """What a simulated user of an evaluation set says first, and how it goes on."""

    starting_prompt: str
    plan: str
    persona: str = ""
    """Who the user is, in words; "" for nobody in particular."""
    instructions: str = ""
    """A prompt of the configuration's own, in place of ours; "" for ours."""
    stop_signal: str = "</finished>"
    model: ModelWish | None = None
    """Who is to play the user; None: the configured model."""
