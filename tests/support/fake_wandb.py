"""A W&B server on loopback: answers what the client asks for and keeps what it sends."""

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import quote, unquote

ME = {"id": "1", "name": "me"}


@dataclass
class Artifact:
    """An artifact with the files that were uploaded, complete once it is committed."""

    name: str
    type: str
    run: str
    files: dict[str, bytes] = field(default_factory=dict)
    committed: bool = False


class Server(ThreadingHTTPServer):
    """Keeps runs, their lines and files, artifacts, and the dashboards of a project."""

    def __init__(self, fault: str) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.fault = fault
        self.silent_after = ""  # an operation of GraphQL, after which nothing is answered
        self.closing = threading.Event()
        self.created: list[dict[str, Any]] = []
        self.streamed: list[dict[str, Any]] = []
        self.files: dict[tuple[str, str], bytes] = {}  # of runs, by run and name
        self.artifacts: list[Artifact] = []
        self.operations: list[str] = []  # operations of GraphQL, in their order
        self.projects = ["normbench"]
        self.views: dict[str, dict[str, Any]] = {}  # workspaces and report pages, by id

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def lines(self, file: str, run: str = "") -> list[dict[str, Any]]:
        """What was streamed into such files, say wandb-history.jsonl, of all runs or of one."""
        streamed = [sent for sent in self.streamed if run in ("", sent["run"])]
        chunks = [sent["files"][file] for sent in streamed if file in sent.get("files", {})]
        return [json.loads(line) for chunk in chunks for line in chunk["content"]]

    def config(self, run: str) -> dict[str, Any]:
        """The config of a run; its key _wandb has the definitions of metrics."""
        sent = [each["config"] for each in self.created if each["name"] == run and each["config"]]
        return {key: each["value"] for text in sent for key, each in json.loads(text).items()}

    def summary(self, run: str) -> dict[str, Any]:
        """The summary of a run."""
        return self.lines("wandb-summary.json", run)[-1]

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
            self.server.streamed.append({**json.loads(raw), "run": self.path.split("/")[-2]})
        self._answer({})  # and what W&B measures of itself is no JSON

    def do_PUT(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"] or 0))
        kind, owner, name = unquote(self.path).removeprefix("/").split("/", 2)
        if kind == "artifacts":
            self.server.artifacts[int(owner)].files[name] = content
        else:
            self.server.files[owner, name] = content
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
            owner = f"files/{variables['run']}"
            files = [{"name": name, **self._upload(owner, name)} for name in variables["files"]]
            return {"createRunFiles": {"runID": "1", "uploadHeaders": [], "files": files}}
        if "RunResumeStatus" in query:
            return {"model": {"id": "1", "name": variables["project"], "entity": ME,
                              "bucket": self._saved_run(variables["name"])}}  # fmt: skip
        if "rtifact" in query:
            return self._artifact(query, variables)
        if "viewer" in query:
            viewer = {"id": "1", "username": "me", "entity": "me", "flags": "{}",
                      "teams": {"edges": []}}  # fmt: skip
            return {"viewer": viewer, "serverInfo": {"features": []}}
        return {}

    def _upload(self, owner: str, name: str) -> dict[str, Any]:
        url = f"{self.server.address}/{owner}/{quote(name)}"
        return {"uploadUrl": url, "uploadHeaders": []}

    def _saved_run(self, name: str) -> dict[str, Any] | None:
        """A run that was created before, for a client that continues it."""
        if not any(each["name"] == name for each in self.server.created):
            return None
        config = {key: {"value": value} for key, value in self.server.config(name).items()}
        history = self.server.lines("wandb-history.jsonl", name)
        return {"id": "1", "name": name, "displayName": name, "tags": [], "notes": None,
                "summaryMetrics": json.dumps(self.server.summary(name)),
                "config": json.dumps(config), "wandbConfig": json.dumps(config["_wandb"]["value"]),
                "historyLineCount": len(history), "eventsLineCount": 0, "logLineCount": 0,
                "historyTail": json.dumps([json.dumps(line) for line in history[-1:]]),
                "eventsTail": "[]"}  # fmt: skip

    def _artifact(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        """The steps of an artifact: created, its files and manifest uploaded, committed."""
        artifacts = self.server.artifacts
        content = variables.get("input", {})
        if "createArtifact(" in query:
            names = (
                content["artifactCollectionName"],
                content["artifactTypeName"],
                content["runName"],
            )
            artifacts.append(Artifact(*names))
            artifact = {"id": str(len(artifacts) - 1), "state": "PENDING"}
            return {"createArtifact": {"artifact": artifact | {"artifactSequence": {}}}}
        if "createArtifactManifest(" in query:
            owner = f"artifacts/{variables['artifactID']}"
            file = {"id": "1", **self._upload(owner, variables["name"])}
            return {"createArtifactManifest": {"artifactManifest": {"id": "1", "file": file}}}
        if "createArtifactFiles(" in query:
            nodes = [
                {"artifact": {"id": each["artifactID"]}, "storagePath": each["name"],
                 "uploadMultipartUrls": None,
                 **self._upload(f"artifacts/{each['artifactID']}", each["name"])}
                for each in content["artifactFiles"]
            ]  # fmt: skip
            return {"createArtifactFiles": {"files": {"edges": [{"node": node} for node in nodes]}}}
        if "commitArtifact(" in query:
            number = variables["artifactID"]
            artifacts[int(number)].committed = True
            return {"commitArtifact": {"artifact": {"id": number, "digest": ""}}}
        return {"project": {"artifact": None}}  # none of that name yet

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
