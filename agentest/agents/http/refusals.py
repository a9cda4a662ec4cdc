"""What an agent's refusal may mean, and which key of the configuration would help."""

from __future__ import annotations

from urllib.parse import urljoin

from agentest.agents.hints import readable
from agentest.agents.http.browser import is_login
from agentest.agents.http_sender import HttpSender, beginning_of
from agentest.support.http.client import DirectResponse

_LOG_IN = (
    "log in with `setup: {per: run, endpoint: …, body: …, save: {token: …}}` and send {{token}} in `headers`"
)
_BY_STATUS = {
    400: "`body`, `params` and `headers` are sent as they are written: do they have what the agent asks for?",
    401: f"are the credentials in `headers` right? For an agent with a login, {_LOG_IN}",
    403: "are the credentials in `headers` right, and may their user do this?",
    404: "is the path of `endpoint` right?",
    405: "is `method` right?",
    411: "is a `body` missing?",
    413: "`body` is larger than the agent takes",
    415: "the agent takes another form of `body`: say which by a header, like `Content-Type: "
    "application/x-www-form-urlencoded` for a form",
    422: "`body` lacks a field, or has one of another type, than the agent asks for",
}


async def refusal(response: DirectResponse, method: str, sender: HttpSender) -> str:
    """What is wrong with an answer by its status, and what to try. Reads the beginning of its body."""
    status = response.status_code
    if 300 <= status < 400:
        problem = await sender.problem(response)
        return f"{problem} ({_LOG_IN})" if leads_to_login(response) else problem
    advice = _BY_STATUS.get(status, "")
    shown = readable(await beginning_of(response)) or "(empty body)"
    return f"{method} {response.url} answered {status}{f' ({advice})' if advice else ''}: {shown}"


def leads_to_login(response: DirectResponse) -> bool:
    """Whether an answer is a redirect to where users log in."""
    target = response.headers.get("location", "")
    try:
        return 300 <= response.status_code < 400 and is_login(urljoin(str(response.url), target))
    except ValueError:
        return False
