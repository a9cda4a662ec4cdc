"""A run is split into the same shards everywhere."""

from __future__ import annotations

import pytest

from agentest.domain.shards import Shard, parse_shard, split


@pytest.mark.parametrize("text", ["0/4", "5/4", "x", "1/0", "-1/2", "1", "1/2/3", "", "1.5/2"])
def test_invalid_shards_are_refused(text: str) -> None:
    """K/N needs K from 1 to N."""
    with pytest.raises(ValueError, match=r"part"):
        parse_shard(text)
    assert parse_shard(" 2/4 ") == Shard(number=2, of=4)


@pytest.mark.parametrize("of", [1, 2, 3, 7, 40])
def test_each_scenario_is_in_one_shard(of: int) -> None:
    """The largest scenarios go first, each to the emptiest shard; extra shards stay empty."""
    costs = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 0]
    numbers = split(costs, of)
    assert numbers == split(list(costs), of)
    assert set(numbers) <= set(range(1, of + 1))
    loads = [
        sum(cost for cost, number in zip(costs, numbers, strict=True) if number == n)
        for n in range(1, of + 1)
    ]
    assert max(loads) <= max(max(costs), -(-sum(costs) // of) + max(costs) // 3)
    assert loads[0] > 0
