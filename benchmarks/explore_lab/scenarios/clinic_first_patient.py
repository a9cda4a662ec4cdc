from agentest import call, scenario

scenario(
    "books for a patient by name",
    turns=["Please book an appointment for Ann Lee on Friday at 10:30."],
    tools={
        "find_patients": {"patients": [{"id": "PT-7", "name": "Ann Lee", "born": "1980-02-01"}]},
        "list_slots": {"day": "Friday", "slots": ["09:00", "10:30"]},
        "book_appointment": {"appointment": "AP-1"},
    },
    trajectory={
        "reads": ["find_*", "list_*"],
        "expected_writes": [call("book_appointment", patient_id="PT-7", day="Friday", time="10:30")],
    },
    expect={"says": "AP-1"},
)
