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
        low, high: its 95 % interval; None where there is none. Older files may have a zero width.
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
        if self.kappa is None:
            return f"judge agrees {self.agreement:.0%}, n {self.n}"
        low, high = self.low, self.high
        sure = f" [{low:.2f}, {high:.2f}]" if low is not None and high is not None and low < high else ""
        return f"judge κ {self.kappa:.2f}{sure}, n {self.n}"
