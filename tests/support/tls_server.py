"""A server that speaks TLS with a self-signed certificate, and answers every message with "Hello"."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

# A throw-away key for 127.0.0.1, which protects nothing. Valid until 2126.
CERTIFICATE = """\
-----BEGIN CERTIFICATE-----
MIIBjzCCATagAwIBAgIUYtDarJgzf0npaVgtl7N69fBMSEUwCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJMTI3LjAuMC4xMCAXDTI2MTEyNTEzMzgzOVoYDzIxMjYxMTAx
MTMzODM5WjAUMRIwEAYDVQQDDAkxMjcuMC4wLjEwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAAS/y4OGFfuRt4LVq7kEZIYzB3YKR/oE1YyFCnndoqmlFQ72we6ZnhAa
nhUXl3u05M4pcDnFVk3g8giEXNJ7R9wio2QwYjAdBgNVHQ4EFgQU8321KsoO2dSb
tAZL+TwJuz8EkzowHwYDVR0jBBgwFoAU8321KsoO2dSbtAZL+TwJuz8EkzowDwYD
VR0TAQH/BAUwAwEB/zAPBgNVHREECDAGhwR/AAABMAoGCCqGSM49BAMCA0cAMEQC
IFg2liztJAl82XCM1tpUYWVF6HXJ7Apq2i3Tk3jV6/OBAiAJ8IafnFCtFLa305wy
pQF8c3yJmlqYF0qYwPi65fiJiQ==
-----END CERTIFICATE-----
"""
_KEY = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgObk9P/BKwihMNW/6
hJfuORDE+Aqpri8FbBKEbVIXuKuhRANCAAS/y4OGFfuRt4LVq7kEZIYzB3YKR/oE
1YyFCnndoqmlFQ72we6ZnhAanhUXl3u05M4pcDnFVk3g8giEXNJ7R9wi
-----END PRIVATE KEY-----
"""


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        message = {"role": "assistant", "content": "Hello"}
        body = json.dumps({"choices": [{"message": message, "finish_reason": "stop"}]}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Print nothing about clients that do not speak TLS."""


@contextmanager
def tls_server(folder: Path) -> Iterator[str]:
    """Serve until the block ends. Yields `127.0.0.1:PORT`; `folder` receives certificate.pem."""
    pem = folder / "certificate.pem"
    pem.write_text(CERTIFICATE + _KEY)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    with _Server(("127.0.0.1", 0), _Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
