from agentest import call, scenario

TOOLS = {
    "get_user": lambda args, ctx: {"id": args["id"], "name": "Ann Lee"},
    "reset_password": {"ok": True},
    "grant_access": {"ok": True},
}

scenario(
    "resets a password",
    turns=["Good morning, please reset the password of user US-7."],
    tools=TOOLS,
    trajectory={"reads": ["get_*"], "expected_writes": [call("reset_password", user="US-7")]},
    expect={"says": "reset"},
)
scenario(
    "grants access after a yes",
    turns=["US-8 needs access to the Wiki.", "Yes."],
    tools=TOOLS,
    trajectory={"reads": ["get_*"], "expected_writes": [call("grant_access", user="US-8", system="Wiki")]},
)
