"""A streaming completions server with known behaviour, and a log of what it saw: `python paced_server.py PORT LOG`.

The first part of the path names the behaviour (`/slow/v1/completions`), or several, taken in turn by the requests
(`/short,reset/v1/completions`); none is a healthy engine. A process of its own, so that its truth shares nothing with
the client but CLOCK_MONOTONIC.
"""

import itertools
import json
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

LOCK = threading.Lock()
REQUESTS = itertools.count()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    log_path: Path
    entry: dict[str, Any]

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def do_POST(self) -> None:
        arrived_ns = time.monotonic_ns()
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        behaviours = self.path.split("/")[1].split(",")
        with LOCK:
            behaviour = behaviours[next(REQUESTS) % len(behaviours)]
        answer = getattr(self, f"answer_{behaviour.replace('-', '_')}")
        self.entry = {"arrived_ns": arrived_ns, "behaviour": behaviour, "body": body, "sent_ns": [], "text": ""}
        self.entry["authorization"] = self.headers["Authorization"]
        self.entry["accept_encoding"] = self.headers["Accept-Encoding"]
        self.entry["request_id"] = self.headers["X-Request-Id"].partition(".")[0]
        try:
            answer(body)
        finally:
            self.entry["ended_ns"] = time.monotonic_ns()
            with LOCK, self.log_path.open("a") as log:
                log.write(json.dumps(self.entry) + "\n")

    # What an answer is made of.

    def head(self, status: int = 200, kind: str = "text/event-stream", **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def raw(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def end(self) -> None:
        self.raw(b"")

    def events(self, body: dict[str, Any], *, ids: bool = True, finish: bool = True, done: bool = True) -> list[bytes]:
        """The events of a healthy answer: one token each, then usage, then `[DONE]`."""
        count = body["max_tokens"]
        out = []
        for i in range(count):
            choice: dict[str, Any] = {"index": 0, "text": f" w{i}", "finish_reason": None}
            if i == count - 1 and finish:
                choice["finish_reason"] = "length"
            if ids:
                choice["token_ids"] = [100 + i]
            out.append(json.dumps({"choices": [choice]}))
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": count, "total_tokens": 0}
        out.append(json.dumps({"choices": [], "usage": {**usage, "prompt_tokens_details": {"cached_tokens": 7}}}))
        if done:
            out.append("[DONE]")
        self.entry["text"] = "".join(f" w{i}" for i in range(count))
        return [f"data: {data}\n\n".encode() for data in out]

    def send_events(self, events: list[bytes], gap_s: float = 0.003) -> None:
        for event in events:
            self.entry["sent_ns"].append(time.monotonic_ns())
            self.raw(event)
            time.sleep(gap_s)

    # Behaviours.

    def answer_v1(self, body: dict[str, Any]) -> None:
        """Healthy, token ids included."""
        self.head()
        self.send_events(self.events(body))
        self.end()

    def answer_chat(self, body: dict[str, Any]) -> None:
        """Healthy, as a chat: a role first, then content."""
        self.head()
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
        deltas += [{"content": f" w{i}é"} for i in range(body["max_tokens"])]
        choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
        events = [{"choices": [choice]} for choice in [*choices, {"index": 0, "delta": {}, "finish_reason": "length"}]]
        usage = {"prompt_tokens": 10, "completion_tokens": body["max_tokens"]}
        lines = [json.dumps(event) for event in [*events, {"choices": [], "usage": usage}]]
        self.send_events([f"data: {line}\n\n".encode() for line in [*lines, "[DONE]"]])
        self.end()

    def answer_text_only(self, body: dict[str, Any]) -> None:
        self.head()
        self.send_events(self.events(body, ids=False))
        self.end()

    def answer_close_delimited(self, body: dict[str, Any]) -> None:
        """Neither chunked nor with a length: the end is the connection's end."""
        self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + b"".join(self.events(body)))
        self.close_connection = True

    def answer_processing(self, body: dict[str, Any]) -> None:
        """An interim answer first, trailers last."""
        self.wfile.write(b"HTTP/1.1 102 Processing\r\n\r\n")
        self.head()
        self.send_events(self.events(body))
        self.wfile.write(b"0\r\nX-Trailer: yes\r\n\r\n")

    def answer_pings(self, body: dict[str, Any]) -> None:
        self.head()
        for event in self.events(body):
            self.raw(b": ping\r\n\r\nid: 7\r\nevent: message\r\n" + event.replace(b"\n\n", b"\r\n\r\n"))
        self.end()

    def answer_split(self, body: dict[str, Any]) -> None:
        """Every few bytes in a chunk of their own."""
        self.head()
        stream = b"".join(self.events(body))
        for at in range(0, len(stream), 7):
            self.raw(stream[at : at + 7])
        self.end()

    def answer_held_open(self, body: dict[str, Any]) -> None:
        """Says `[DONE]` and keeps the connection."""
        self.head()
        self.send_events(self.events(body))
        time.sleep(3)
        self.end()

    def answer_buffered(self, body: dict[str, Any]) -> None:
        """A proxy that holds everything back."""
        self.head()
        events = self.events(body)
        time.sleep(0.02)
        self.raw(b"".join(events))
        self.end()

    def answer_packed(self, body: dict[str, Any]) -> None:
        """Two tokens an event, without ids."""
        self.head()
        for i in range(0, body["max_tokens"], 2):
            self.raw(f'data: {{"choices": [{{"index": 0, "text": " a{i} b{i}", "finish_reason": null}}]}}\n\n'.encode())
            time.sleep(0.002)
        self.raw(b'data: {"choices": [{"index": 0, "text": "", "finish_reason": "length"}]}\n\n')
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": body["max_tokens"]}
        self.raw(f"data: {json.dumps({'choices': [], 'usage': usage})}\n\ndata: [DONE]\n\n".encode())
        self.end()

    def answer_short(self, body: dict[str, Any]) -> None:
        """One token fewer than asked."""
        self.answer_v1({**body, "max_tokens": body["max_tokens"] - 1})

    def answer_no_done(self, body: dict[str, Any]) -> None:
        self.head()
        self.send_events(self.events(body, done=False))
        self.end()

    def answer_no_finish(self, body: dict[str, Any]) -> None:
        self.head()
        self.send_events(self.events(body, finish=False))
        self.end()

    def answer_truncated(self, body: dict[str, Any]) -> None:
        """The connection ends in the middle of the body."""
        self.head()
        self.send_events(self.events(body)[:3])
        self.close_connection = True

    def answer_reset(self, body: dict[str, Any]) -> None:
        self.head()
        self.send_events(self.events(body)[:3])
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.connection.close()
        self.close_connection = True

    def answer_hang_up(self, body: dict[str, Any]) -> None:
        """Closes without a word."""
        self.close_connection = True

    def answer_error_event(self, body: dict[str, Any]) -> None:
        self.head()
        self.send_events(self.events(body)[:2])
        self.raw(b'data: {"error": {"message": "engine ran out of blocks", "code": 500}}\n\ndata: [DONE]\n\n')
        self.end()

    def answer_bad_json(self, body: dict[str, Any]) -> None:
        self.head()
        events = self.events(body)
        self.send_events([events[0], b"data: {broken\n\n", *events[1:]])
        self.end()

    def answer_empty(self, body: dict[str, Any]) -> None:
        self.head()
        self.raw(b'data: {"choices": [{"index": 0, "text": "", "finish_reason": "length"}]}\n\ndata: [DONE]\n\n')
        self.end()

    def answer_server_error(self, body: dict[str, Any]) -> None:
        self.head(500, "application/json")
        self.raw(b'{"error": {"message": "no such model"}}')
        self.end()

    def answer_not_streamed(self, body: dict[str, Any]) -> None:
        self.head(200, "application/json")
        self.raw(b'{"choices": [{"text": "all at once"}]}')
        self.end()

    def answer_gzip(self, body: dict[str, Any]) -> None:
        self.head(Content_Encoding="gzip")
        self.raw(b"\x1f\x8b nonsense")
        self.end()

    def answer_no_http(self, body: dict[str, Any]) -> None:
        self.wfile.write(b"\x00\x01 hello\r\n\r\n")
        self.close_connection = True

    def answer_silent(self, body: dict[str, Any]) -> None:
        """Accepts and never answers."""
        self.head()
        time.sleep(30)
        self.close_connection = True

    def answer_slow(self, body: dict[str, Any]) -> None:
        self.head()
        self.send_events(self.events(body), gap_s=0.25)
        self.end()


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # clients that hang up are part of the tests


if __name__ == "__main__":
    Handler.log_path = Path(sys.argv[2])
    server = Server(("127.0.0.1", int(sys.argv[1])), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()
