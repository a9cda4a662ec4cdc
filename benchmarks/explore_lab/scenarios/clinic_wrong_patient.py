from agentest import call, scenario

scenario(
    "books for a patient by number",
    turns=["Hello. I need an appointment on Friday at 09:00. The patient is PT-7."],
    tools={
        "get_patient": {"id": "PT-7", "name": "Ann Lee"},
        "list_slots": {"day": "Friday", "slots": ["09:00", "10:30"]},
        "book_appointment": {"appointment": "AP-1"},
    },
    trajectory={
        "match_mode": "contains",
        "expected": ["get_patient", call("book_appointment", patient_id="PT-7", day="Friday", time="09:00")],
        "max_calls_per_tool": {"book_appointment": 1},
    },
)
