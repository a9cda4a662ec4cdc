from agentest import call, scenario

scenario(
    "sends a mail to an address",
    turns=['Please send "See you at noon" to kim@x.example.'],
    tools={"send_mail": {"sent": True}, "delete_mail": {"deleted": True}, "list_mails": {"mails": []}},
    trajectory={
        "reads": ["list_*"],
        "expected_writes": [call("send_mail", to="kim@x.example", text="See you at noon")],
    },
    expect={"says": "is sent"},
)
scenario(
    "deletes a mail",
    turns=["Delete mail ML-8.", "Yes."],
    tools={"delete_mail": {"deleted": True}, "send_mail": {"sent": True}},
    trajectory={"expected": [call("delete_mail", id="ML-8")]},
    consent={"delete_mail": "yes|do it|confirm"},
)
