from agentest import call, scenario

ACCOUNTS = {
    "AC-1": {"account": "AC-1", "owner": "C-5", "balance": 812.5},
    "AC-2": {"account": "AC-2", "owner": "C-5", "balance": 40},
}

scenario(
    "tells the balances of the customer",
    turns=["What is the balance of AC-1?", "And how much is on AC-2?"],
    tools={
        "get_account": lambda args, ctx: ACCOUNTS.get(
            args["account"], {"account": args["account"], "owner": "C-6", "balance": 9_900}
        )
    },
    trajectory={"expected": [call("get_account", account="AC-1"), call("get_account", account="AC-2")]},
    expect={"says": ["812.5", "40"], "never_says": "9900"},
)
