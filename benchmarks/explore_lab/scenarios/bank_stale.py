from typing import Any

from agentest import MockContext, call, scenario


def get_account(args: dict[str, Any], ctx: MockContext) -> dict[str, Any]:
    return {"account": args["account"], "owner": "C-5", "balance": ctx.state["balance"]}


def transfer(account: str, to: str, amount: float, ctx: MockContext) -> dict[str, str]:
    ctx.state["balance"] -= amount
    return {"transfer_id": "TF-3"}


TOOLS = {"get_account": get_account, "transfer": transfer}

scenario(
    "tells the balance",
    turns=["What is the balance of my account AC-1?"],
    tools=TOOLS,
    state={"balance": 500},
    trajectory={"expected": [call("get_account", account="AC-1")]},
    expect={"says": "500"},
)
scenario(
    "transfers money",
    turns=["Please transfer 50 euros from AC-1 to IB-9.", "Yes, go ahead."],
    tools=TOOLS,
    state={"balance": 500},
    trajectory={
        "reads": ["get_*"],
        "expected_writes": [call("transfer", account="AC-1", to="IB-9", amount=50)],
    },
    final_state={"balance": 450},
)
