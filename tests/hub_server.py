"""A stand-in for the part of the Hugging Face Hub that takes a model: who is there, creating a
repository and a branch, large files by the protocol of Git LFS, small ones within a commit.

    with HubServer(writable=("ada",)) as hub:
        hub.url, hub.repositories["ada/solver"].branches["main"]["README.md"]
"""

import base64
import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TOKEN = "hf_" + "a" * 30
NO_REPOSITORY = "Repository not found"
OF_A_REPOSITORY = re.compile(r"/api/models/([^/]+/[^/]+)(?:/(branch|preupload|commit)/(.+))?")
LFS_SUFFIXES = (".safetensors", ".gguf")


@dataclass
class Repository:
    visibility: str | None
    branches: dict[str, dict[str, bytes]] = field(default_factory=lambda: {"main": {}})
    messages: list[str] = field(default_factory=list)


class HubServer:
    """Serves on loopback. Only accounts in `writable` have repositories that may be written to."""

    def __init__(self, writable=("ada",)):
        self.writable = writable
        self.repositories: dict[str, Repository] = {}
        self.objects: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.takes_objects = True
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self):
                length = int(self.headers.get("content-length") or 0)
                body = self.rfile.read(length)
                path = self.path.partition("?")[0]
                hub.requests.append(f"{self.command} {path}")
                # As on the Hub, an address to upload to is signed and takes no token.
                is_upload = self.command == "PUT"
                if not is_upload and self.headers.get("authorization") != f"Bearer {TOKEN}":
                    status, content = 401, {"error": "Invalid credentials"}
                else:
                    status, content = hub.answer(self.command, path, body)
                data = json.dumps(content).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                if content.get("error") == NO_REPOSITORY:
                    self.send_header("x-error-code", "RepoNotFound")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PUT = answer

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self):
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, command, path, body):
        if command == "PUT":
            if not self.takes_objects:
                return 403, {"error": "the signature has expired"}
            self.objects[path.removeprefix("/objects/")] = body
            return 200, {}
        if path == "/api/whoami-v2":
            return 200, {"type": "user", "name": "ada", "orgs": []}
        if path == "/api/validate-yaml":
            has_head = json.loads(body)["content"].startswith("---\n")
            return (200, {"warnings": []}) if has_head else (400, {"errors": [{"message": "none"}]})
        if path == "/api/repos/create":
            return self._create(json.loads(body))
        if found := OF_A_REPOSITORY.fullmatch(path):
            name, action, revision = found.groups()
            if name not in self.repositories:
                return 404, {"error": NO_REPOSITORY}
            return self._of_repository(name, action, revision, body)
        if path.endswith(".git/info/lfs/objects/batch"):
            wanted = [dict(each) for each in json.loads(body)["objects"]]
            for each in wanted:
                each["actions"] = {"upload": {"href": f"{self.url}/objects/{each['oid']}"}}
            return 200, {"transfer": "basic", "objects": wanted}
        return 404, {"error": f"no such page: {path}"}

    def _create(self, asked):
        owner = asked["organization"] or "ada"
        name = f"{owner}/{asked['name']}"
        if owner not in self.writable:
            return 403, {"error": f"You don't have the rights to create a model under {owner}"}
        if name in self.repositories:
            taken = {"error": "You already created this model repo", "url": f"{self.url}/{name}"}
            return 409, taken
        self.repositories[name] = Repository(asked.get("visibility"))
        return 200, {"url": f"{self.url}/{name}", "name": name}

    def _of_repository(self, name, action, revision, body):
        repository = self.repositories[name]
        if action is None:
            return 200, {"id": name, "modelId": name, "siblings": [], "tags": [], "private": True}
        if action == "branch":
            if revision in repository.branches:
                return 409, {"error": "Reference already exists"}
            repository.branches[revision] = dict(repository.branches["main"])
            return 200, {}
        if revision not in repository.branches:
            return 404, {"error": f"Invalid rev id: {revision}"}
        if action == "preupload":
            files = [
                {
                    "path": each["path"],
                    "uploadMode": "lfs" if each["path"].endswith(LFS_SUFFIXES) else "regular",
                    "shouldIgnore": False,
                }
                for each in json.loads(body)["files"]
            ]
            return 200, {"files": files}
        return self._commit(name, repository, revision, body)

    def _commit(self, name, repository, revision, body):
        branch = repository.branches[revision]
        for line in body.splitlines():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "header":
                repository.messages.append(value["summary"])
            elif entry["key"] == "file":
                branch[value["path"]] = base64.b64decode(value["content"])
            elif entry["key"] == "lfsFile":
                content = self.objects[value["oid"]]
                if hashlib.sha256(content).hexdigest() != value["oid"]:
                    return 400, {"error": "another content than announced"}
                branch[value["path"]] = content
        oid = f"{len(repository.messages):040x}"
        return 200, {"commitUrl": f"{self.url}/{name}/commit/{oid}", "commitOid": oid}
