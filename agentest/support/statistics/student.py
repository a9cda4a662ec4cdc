"""Student's distribution: how likely a value so far from 0 is, and how far 95 % of the values go.

Written out here, as the libraries that have it are larger than all of Agentest.
"""

from __future__ import annotations

from functools import lru_cache
from math import exp, inf, isinf, lgamma, log

_STEPS = 300
_TINY = 1e-300
_CLOSE = 1e-14


def two_sided(t: float, freedom: float) -> float:
    """How likely a value at least as far from 0 as `t` is; `freedom` are its degrees, above 0."""
    if isinf(t):
        return 0.0
    return _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t))


@lru_cache(maxsize=1024)
def quantile(freedom: float, outside: float = 0.05) -> float:
    """How far from 0 all but a share of `outside` of the values are, for so many degrees of freedom."""
    low, high = 0.0, 1.0
    while two_sided(high, freedom) > outside and high < 1e12:
        low, high = high, high * 4
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if two_sided(middle, freedom) > outside else (low, middle)
    return high


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log(1 - x))
    if x < (a + 1) / (a + b + 2):
        return front * _fraction(a, b, x) / a
    return 1 - front * _fraction(b, a, 1 - x) / b


def _fraction(a: float, b: float, x: float) -> float:
    """Its continued fraction, by Lentz's method."""
    upper, lower = 1.0, _inverse(1 - (a + b) * x / (a + 1))
    value = lower
    for m in range(1, _STEPS):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            lower = _inverse(1 + term * lower)
            upper = 1 + term / upper or _TINY
            step = upper * lower
            value *= step
        if abs(step - 1) < _CLOSE:
            break
    return value


def _inverse(value: float) -> float:
    return 1 / (value or _TINY) if value != inf else 0.0
