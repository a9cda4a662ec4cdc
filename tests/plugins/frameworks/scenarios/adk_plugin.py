from typing import Any

from agentest import call, scenario


def own(args: dict[str, Any], ctx: Any) -> dict[str, Any]:
    return {"for": ctx.scenario, **args}


def broken(args: dict[str, Any], ctx: Any) -> Any:
    raise ValueError("sold out")


mocks: dict[str, Any] = {"stock": own}
for n in range(50):
    one, two, three = f"a{n}", f"b{n}", f"c{n}"
    expected = [call("stock", item=item) for item in (one, two, three)]
    scenario(
        f"many {n}",
        turns=[
            {
                "user_message": f"stock {one} {two}",
                "expect": {"contains": f"{{'for': 'many {n}', 'item': '{one}'}}"},
            },
            f"stock {three}",
        ],
        tools=mocks,
        trajectory={
            "match_mode": "unordered",
            "expected": expected,
        },
    )
scenario("breaks a ban", turns=["reserve lamp"], tools={"reserve": 1}, trajectory={"forbidden": ["reserve"]})
scenario("keeps a ban", turns=["stock lamp"], tools=mocks, trajectory={"forbidden": ["reserve"]})
scenario("has no mock", turns=["reserve lamp"], tools=mocks)
scenario(
    "its mock raises",
    turns=[{"user_message": "stock lamp", "expect": {"contains": "sold out"}}],
    tools={"stock": broken},
)
scenario(
    "long-running",
    turns=["order lamp"],
    tools={"order": {"status": "open"}},
    trajectory={"match_mode": "strict", "expected": ["order"]},
)
scenario(
    "a clerk that is mocked",
    turns=["ask stock lamp"],
    tools={"ask_clerk": "three"},
    trajectory={"match_mode": "strict", "expected": ["ask_clerk"]},
)
scenario(
    "a sub-agent",
    turns=["transfer", "stock lamp"],
    tools=mocks,
    trajectory={"match_mode": "strict", "expected": ["transfer_to_agent", "stock"]},
)
