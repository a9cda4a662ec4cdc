"""The shop's agent as a bot on Slack, Bot Framework and Twilio: their libraries check what comes and reply.

`--channel` is the server that stands for the channel.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import shop
from serving import options, serve

SECRET = "none"
said: dict[str, list[str]] = {}


def answer(conversation: str, text: str) -> str:
    """Return the bot's reply, using the shop's own tools."""
    said.setdefault(conversation, []).append(text)
    results: list[Any] = []
    while isinstance(step := shop.think_in_thread(said[conversation], results), shop.Call):
        results.append(shop.run_tool(step))
    return step


def slack(port: int, channel: str) -> None:
    from slack_bolt import App
    from slack_bolt.adapter.asgi import SlackRequestHandler
    from slack_sdk import WebClient

    app = App(client=WebClient(token="xoxb-1", base_url=f"{channel}/api/"), signing_secret=SECRET)

    @app.event("message")
    def on_message(event: dict[str, Any], say: Any) -> None:
        say(answer(event["channel"], event["text"]))

    serve(SlackRequestHandler(app), port)


def bot_framework(port: int, channel: str) -> None:
    from aiohttp import web
    from botbuilder.core import BotFrameworkAdapter, BotFrameworkAdapterSettings, TurnContext
    from botbuilder.schema import Activity

    adapter = BotFrameworkAdapter(BotFrameworkAdapterSettings("", ""))

    async def on_turn(turn: TurnContext) -> None:
        await turn.send_activity(Activity(type="typing"))
        asked = turn.activity
        await turn.send_activity(await asyncio.to_thread(answer, asked.conversation.id, asked.text))

    async def messages(request: web.Request) -> web.Response:
        activity = Activity().deserialize(await request.json())
        await adapter.process_activity(activity, request.headers.get("Authorization", ""), on_turn)
        return web.Response(status=201)

    app = web.Application()
    app.router.add_post("/api/messages", messages)
    web.run_app(app, host="127.0.0.1", port=port, print=None)


def twilio(port: int, channel: str) -> None:
    from flask import Flask, Response, abort, request
    from twilio.http.http_client import TwilioHttpClient
    from twilio.request_validator import RequestValidator
    from twilio.rest import Client

    class ToChannel(TwilioHttpClient):
        def request(self, method: str, url: str, *args: Any, **more: Any) -> Any:
            return super().request(method, url.replace("https://api.twilio.com", channel), *args, **more)

    client = Client("AC0", SECRET, http_client=ToChannel())
    app = Flask(__name__)

    @app.post("/sms")
    def sms() -> Response:
        signature = request.headers.get("X-Twilio-Signature", "")
        if not RequestValidator(SECRET).validate(request.url, request.form, signature):
            abort(403)
        form = dict(request.form)

        def reply() -> None:
            text = answer(form["From"], form["Body"])
            client.messages.create(to=form["From"], from_=form["To"], body=text)

        threading.Thread(target=reply).start()
        return Response("<Response/>", content_type="text/xml")

    app.run(port=port, threaded=True)


if __name__ == "__main__":
    given = options(api="", channel="")
    bots = {"slack": slack, "bot_framework": bot_framework, "twilio": twilio}
    bots[given.api](given.port, given.channel)
