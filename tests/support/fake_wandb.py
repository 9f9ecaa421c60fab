"""A W&B server on loopback: answers what the client asks for and keeps what it sends."""

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Server(ThreadingHTTPServer):
    """Keeps runs, the lines that were streamed to them, and the dashboards of a project."""

    def __init__(self, fault: str) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.fault = fault
        self.silent_after = ""  # an operation of GraphQL, after which nothing is answered
        self.closing = threading.Event()
        self.created: list[dict[str, Any]] = []
        self.streamed: list[dict[str, Any]] = []
        self.operations: list[str] = []  # operations of GraphQL, in their order
        self.projects = ["normbench"]
        self.views: dict[str, dict[str, Any]] = {}  # workspaces and report pages, by id

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def lines(self, file: str) -> list[dict[str, Any]]:
        """What was streamed into one of a run's files, say wandb-history.jsonl."""
        chunks = [sent["files"][file] for sent in self.streamed if file in sent.get("files", {})]
        return [json.loads(line) for chunk in chunks for line in chunk["content"]]

    def saved(self, name: str) -> dict[str, Any]:
        """What is stored of the dashboard that is shown by this name."""
        (view,) = (view for view in self.views.values() if view["displayName"] == name)
        spec: dict[str, Any] = json.loads(view["spec"])
        return spec


class Handler(BaseHTTPRequestHandler):
    """GraphQL, the stream of a run's files, uploads."""

    server: Server

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers["Content-Length"]))
        if self.server.fault:
            self._fail(self.server.fault)
            return
        if self.path == "/graphql":
            request = json.loads(raw)
            data = self._graphql(request["query"], request.get("variables") or {})
            self._answer({"data": data})
            if self.server.silent_after and self.server.silent_after in request["query"]:
                self.server.fault = "silent"
            return
        if self.path.endswith("file_stream"):
            self.server.streamed.append(json.loads(raw))
        self._answer({})  # and what W&B measures of itself is no JSON

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"] or 0))
        self._answer({})

    def do_GET(self) -> None:
        self._answer({})

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Nothing on the screen."""

    def _fail(self, fault: str) -> None:
        if fault == "silent":
            self.server.closing.wait()
        elif fault == "refuses the key":
            self._answer({"errors": [{"message": "no such key"}]}, status=401)
        elif fault == "fails":
            self._answer({"errors": [{"message": "out of order"}]}, status=500)
        elif fault == "another kind of server":
            self._send(b"<html>Welcome</html>", 200)
        elif fault == "answers without data":
            self._answer({"data": None})

    def _answer(self, content: dict[str, Any], status: int = 200) -> None:
        self._send(json.dumps(content).encode(), status)

    def _send(self, raw: bytes, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def _graphql(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        operation = re.search(r"(?:query|mutation)\s+(\w+)", query)
        self.server.operations.append(operation[1] if operation else "")
        if "upsertView" in query:
            return {"upsertView": {"view": self._kept(variables), "inserted": True}}
        if "allViews" in query:
            return {"project": self._project(variables)}
        if "GetProjects" in query:
            return {"models": self._projects()}
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

    def _kept(self, variables: dict[str, Any]) -> dict[str, Any]:
        number = variables.get("id") or f"View{len(self.server.views)}"
        project = {"id": "1", "name": variables["projectName"],
                   "entityName": variables["entityName"]}  # fmt: skip
        view = {**variables, "id": number, "project": project, "updatedAt": None}
        self.server.views[number] = view
        return view

    def _project(self, variables: dict[str, Any]) -> dict[str, Any] | None:
        """A project with its dashboards of one kind, or with the one of a name."""
        name = variables.get("project") or variables["name"]
        if name not in self.server.projects:
            return None
        only = {"type": variables.get("viewType", "runs"), "projectName": name}
        if variables.get("viewName"):
            only["name"] = variables["viewName"]
        found = [view for view in self.server.views.values() if only.items() <= view.items()]
        edges = [{"node": view, "cursor": ""} for view in found]
        return {"allViews": {"edges": edges, "pageInfo": {"endCursor": "", "hasNextPage": False}}}

    def _projects(self) -> dict[str, Any]:
        nodes = [
            {"__typename": "Project", "id": name, "name": name, "entityName": "me",
             "createdAt": "", "isBenchmark": False, "user": None}
            for name in self.server.projects
        ]  # fmt: skip
        page = {"__typename": "PageInfo", "endCursor": None, "hasNextPage": False}
        return {"edges": [{"node": node} for node in nodes], "pageInfo": page}


@contextmanager
def serve(fault: str = "") -> Iterator[Server]:
    """A running server, gone afterwards; `fault`: the way in which it answers every request."""
    with Server(fault) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.closing.set()
            server.shutdown()
            thread.join()
