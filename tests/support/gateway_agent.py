"""`python gateway_agent.py PORT FORM [stream]`: an HTTP agent that runs its own tools.

It finds its model by the environment variables of the form's clients, or at the gateway that a request names.
POST /chat takes `{session, message}`, and `gateway` for the latter.
"""

from __future__ import annotations

import os
import sys

import httpx
from aiohttp import web
from scripted_provider import FORM_OF, Conversation, Refused

_BASES = {
    "chat": os.environ["OPENAI_BASE_URL"].removesuffix("/v1"),
    "responses": os.environ["OPENAI_BASE_URL"].removesuffix("/v1"),
    "stored responses": os.environ["OPENAI_BASE_URL"].removesuffix("/v1"),
    "anthropic": os.environ["ANTHROPIC_BASE_URL"],
    "gemini": os.environ["GOOGLE_GEMINI_BASE_URL"],
}


def main(port: str, form: str, *stream: str) -> None:
    """Serve the agent."""
    client = httpx.AsyncClient(trust_env=False, timeout=30)
    sessions: dict[str, Conversation] = {}

    async def chat(request: web.Request) -> web.Response:
        told = await request.json()
        known = os.environ["AGENTEST_MODEL_URL"]
        base = _BASES[form].replace(known, told.get("gateway", known))
        made = Conversation(FORM_OF[form](), base, client, stream=bool(stream))
        try:
            reply = await sessions.setdefault(told["session"], made).say(told["message"])
        except Refused as error:
            return web.json_response({"error": str(error)}, status=500)
        return web.json_response({"reply": reply, "ran": len(sessions[told["session"]].ran)})

    app = web.Application()
    app.router.add_post("/chat", chat)
    web.run_app(app, host="127.0.0.1", port=int(port), print=None)


if __name__ == "__main__":
    main(*sys.argv[1:])
