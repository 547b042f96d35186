"""A small HTTP server to start in tests: it plays an engine, an engine that misbehaves, or a squatter on its port."""

import argparse
import json
import os
import signal
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

flags = argparse.ArgumentParser()
flags.add_argument("--port", type=int, required=True)
flags.add_argument("--name", default="small")
flags.add_argument("--never-ready", action="store_true")
flags.add_argument("--answer-everything", action="store_true", help="200 to every path")
flags.add_argument("--ignore-sigterm", action="store_true")
flags.add_argument("--worker", action="store_true", help="listen in a child process, as engines with an API process do")
flags.add_argument("--reset-answer", default='{"success": true}')
given = flags.parse_args()


class Handler(BaseHTTPRequestHandler):
    def answer(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def do_GET(self) -> None:
        if given.answer_everything:
            self.answer(200, "ok")
        elif self.path == "/health":
            self.answer(503 if given.never_ready else 200, "")
        elif self.path == "/v1/models":
            self.answer(200, json.dumps({"data": [{"id": given.name}]}))
        elif self.path == "/metrics":
            self.answer(200, "requests_total 3\n")
        else:
            self.answer(404, "")

    def do_POST(self) -> None:
        self.answer(200, given.reset_answer)

    def log_message(self, format: str, *args: object) -> None:
        print(format % args, file=sys.stderr)


if given.ignore_sigterm:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if given.worker and os.fork():
    time.sleep(3600)
ThreadingHTTPServer(("127.0.0.1", given.port), Handler).serve_forever()
