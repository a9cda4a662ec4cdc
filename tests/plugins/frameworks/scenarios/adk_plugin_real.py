from typing import Any

from agentest import scenario


def own(args: dict[str, Any], ctx: Any) -> dict[str, Any]:
    return {"for": ctx.scenario, **args}


for n in range(10):
    said = f"{{'for': 'clerk {n}', 'item': 'a'}}"
    scenario(
        f"clerk {n}",
        turns=[{"user_message": "ask stock a b", "expect": {"contains": said}}],
        tools={"stock": own},
        trajectory={"match_mode": "unordered", "expected": ["ask_clerk", "stock", "stock"]},
    )
scenario("real", turns=["stock lamp"], tools={"reserve": 1})
scenario("falls", turns=["lift lamp"], tools={"reserve": 1})
