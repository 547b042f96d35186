"""An engine as far as questions beside a load need one: `python busy_server.py PORT NAME [slow]`.

It streams to the load, answers questions in one piece, and counts what it runs in llama.cpp's metrics.
"""

import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PORT, NAME = int(sys.argv[1]), sys.argv[2]
BEHAVIOUR = sys.argv[3] if len(sys.argv) > 3 else ""
TOKEN_S = 0.02
LOCK = threading.Lock()
RUNNING: set[int] = set()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def answer(self, content: str, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content.encode())

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self.answer(json.dumps({"data": [{"id": NAME}]}))
        elif self.path == "/metrics":
            self.answer(f"llamacpp:requests_processing {len(RUNNING)}\nllamacpp:requests_deferred 0\n")
        else:
            self.answer("ok")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with LOCK:
            RUNNING.add(threading.get_ident())
        try:
            self.stream(body) if body.get("stream") else self.reply(body)
        except ConnectionError:
            self.close_connection = True  # who asked has gone
        finally:
            with LOCK:
                RUNNING.discard(threading.get_ident())

    def reply(self, body: dict[str, Any]) -> None:
        time.sleep(2 * TOKEN_S)
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": 1}
        choice = {"index": 0, "text": " 1", "finish_reason": "stop"}
        self.answer(json.dumps({"choices": [choice], "usage": usage}))

    def stream(self, body: dict[str, Any]) -> None:
        if BEHAVIOUR == "refuses-loads":
            self.answer('{"error": {"message": "no streams here"}}', 503)
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        count = body["max_tokens"]
        for index in range(count):
            time.sleep(TOKEN_S)
            reason = "length" if index == count - 1 else None
            self.event({"choices": [{"index": 0, "text": " a", "token_ids": [5], "finish_reason": reason}]})
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": count}
        self.event({"choices": [], "usage": usage})
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def event(self, content: dict[str, Any]) -> None:
        self.wfile.write(b"data: " + json.dumps(content).encode() + b"\n\n")


ThreadingHTTPServer(("127.0.0.1", PORT), Handler).serve_forever()
