"""Which model a file wishes for: the judge of one criterion, or the user of one evaluation set."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Sampling:
    """What shapes a model's answers besides the question; None leaves it to the model."""

    temperature: float | None = None
    max_tokens: int | None = None
    top_p: float | None = None
    top_k: float | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None

    def given(self) -> dict[str, Any]:
        """Those that are given, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}


NO_SAMPLING = Sampling()


@dataclass(frozen=True, slots=True)
class ModelWish:
    """A model that a file names, and how it is to answer. Equal wishes are answered by one model.

    Whether it can be asked is known when the run is prepared; else the configured model of the role answers.
    """

    role: Literal["user", "judge"]
    model: str | None = None
    """As it is written, in whatever spelling; None: the configured model, with this sampling."""
    sampling: Sampling = NO_SAMPLING
    file: str = field(default="", compare=False)
    key: str = field(default="", compare=False)
    """Where in the file it stands."""
    metric: str | None = field(default=None, compare=False)
    """Whose judge it is."""
    not_sent: tuple[str, ...] = field(default=(), compare=False)
    """Keys of the model's configuration that have no place in our requests."""

    @property
    def place(self) -> str:
        """Where it stands, for people."""
        return f"{self.file}: {self.key}"
