"""A W&B server on loopback: answers what the client asks for and keeps what it sends."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Server(ThreadingHTTPServer):
    """Keeps the runs that were created and the lines that were streamed to them."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.created: list[dict[str, Any]] = []
        self.streamed: list[dict[str, Any]] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    """GraphQL, the stream of a run's files, uploads."""

    server: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
        if self.path == "/graphql":
            self._answer(
                {"data": self._graphql(body.get("query", ""), body.get("variables") or {})}
            )
        else:
            if self.path.endswith("file_stream"):
                self.server.streamed.append(body)
            self._answer({})

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"] or 0))
        self._answer({})

    def do_GET(self) -> None:
        self._answer({})

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Nothing on the screen."""

    def _answer(self, content: dict[str, Any]) -> None:
        raw = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def _graphql(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        if "upsertBucket" in query:
            self.server.created.append(variables)
            name = variables.get("name") or "run"
            project = {"name": variables.get("project"), "entity": {"name": "me"}}
            run = {"id": "1", "name": name, "displayName": variables.get("displayName"),
                   "sweepName": None, "historyLineCount": 0,
                   "config": "{}", "project": project}  # fmt: skip
            return {"upsertBucket": {"bucket": run, "inserted": True}}
        if "createRunFiles" in query:
            files = [
                {"name": name, "uploadUrl": self.server.address} for name in variables["files"]
            ]
            return {"createRunFiles": {"runID": "1", "uploadHeaders": [], "files": files}}
        if "viewer" in query:
            viewer = {"id": "1", "username": "me", "entity": "me", "flags": "{}",
                      "teams": {"edges": []}}  # fmt: skip
            return {"viewer": viewer, "serverInfo": {"features": []}}
        return {}


@contextmanager
def serve() -> Iterator[Server]:
    """A running server, gone afterwards."""
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
