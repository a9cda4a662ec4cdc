"""An assistant of Acme: `python assistant.py PORT`."""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

LOG = Path(__file__).with_name("acme-calls.jsonl")


class Assistant(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        params = request["params"]
        call = {"tool": "find_order", "args": {"message": params["message"]}, "result": {"status": "lost"}}
        with LOG.open("a", encoding="utf-8") as log:
            log.write(json.dumps({"session": params["session"], **call}) + "\n")
        reply = {"reply": f"I am sorry, {params['department']} has lost your order."}
        body = json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": reply}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Assistant).serve_forever()
