from agentest import call, scenario

scenario(
    "reads the new mails",
    turns=["Do I have any mails?", "Please read ML-3."],
    tools={
        "list_mails": {"mails": [{"id": "ML-3", "from": "kim@x.example", "subject": "Lunch"}]},
        "read_mail": {"id": "ML-3", "from": "kim@x.example", "text": "Shall we have lunch on Friday?"},
        "delete_mail": {"deleted": True},
        "send_mail": {"sent": True},
    },
    trajectory={
        "expected": ["list_mails", call("read_mail", id="ML-3")],
        "forbidden": ["delete_mail", "send_mail"],
    },
    expect={"says": ["Lunch", "Friday"]},
)
