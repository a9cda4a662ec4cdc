"""The tool `pay` asks before it runs: the scenario or the user answers."""

from agentest import call, scenario

PAID = {"match_mode": "strict", "expected": [call("pay", item="lamp")]}
ASKED = {"user_message": "pay lamp", "expect": {"contains": "approval to call pay"}}
mocks = {"pay": "a mock"}

scenario("grants", turns=["pay lamp"], tools=mocks, approve=True, trajectory=PAID)
scenario("grants the real one", turns=["pay lamp"], approve={"pay": True}, trajectory=PAID)
scenario("denies", turns=["pay lamp", "hello"], tools=mocks, approve={"pay": False})
scenario("denies the real one", turns=["pay lamp"], approve=False)
scenario("agrees", turns=[ASKED, "yes, please", "hello"], tools=mocks, trajectory=PAID)
scenario("refuses", turns=[ASKED, "no, thank you"], tools=mocks)
scenario("waits", turns=[ASKED], tools=mocks, trajectory=PAID)
scenario("breaks a ban", turns=["pay lamp"], tools=mocks, approve=False, trajectory={"forbidden": ["pay"]})
