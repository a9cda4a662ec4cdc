"""How far a judge has been right, as people's labels show it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeCalibration:
    """A judge against people's labels, for one metric.

    Attributes:
        model: the judge.
        n: the labelled questions that were compared.
        agreement: the share of those where both see a fault, or both see none.
        kappa: Cohen's kappa of that; None where it is not defined.
        low, high: its 95 % interval; None where there is none.
        date: when it was measured: ISO 8601, a day.
    """

    model: str
    n: int
    agreement: float
    kappa: float | None = None
    low: float | None = None
    high: float | None = None
    date: str = ""

    @property
    def shown(self) -> str:
        """In short, for beside a figure."""
        kappa = f"κ {self.kappa:.2f}" if self.kappa is not None else f"agrees {self.agreement:.0%}"
        return f"judge {kappa}, n {self.n}"
