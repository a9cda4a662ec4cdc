from agentest import call, scenario

scenario(
    "writes to a contact",
    turns=['Hello, please write "The report is ready" to Ann Lee.'],
    tools={
        "find_contacts": {"contacts": [{"name": "Ann Lee", "email": "ann@x.example"}]},
        "send_mail": {"sent": True, "id": "ML-50"},
    },
    trajectory={"expected": [call("find_contacts", name="Ann Lee"), call("send_mail", to="ann@x.example")]},
    expect={"says": "Ann Lee is sent"},
)
