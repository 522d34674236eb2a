"""The hub of `hub_server`, which also takes what is pushed: data sets are made, files uploaded, commits written."""

import base64
import json
from pathlib import Path

from hub_server import LARGE, Hub, _Handler


class _PushHandler(_Handler):
    """Routes of writing, in front of those of reading; each needs the token."""

    def route(self, path, known):
        if path == "api/validate-yaml":
            return self.answer(200, {"errors": [], "warnings": []})
        if self.command not in ("POST", "PUT") or "paths-info" in path:
            return super().route(path, known)
        if path.startswith("upload/"):
            self.server.uploaded[path.rpartition("/")[2]] = self.body
            return self.answer(200)
        if not known:
            return self.answer(401, X_Error_Message="Invalid username or password.")
        given = (
            json.loads(self.body)
            if path.endswith(("create", "batch", "main")) and "/commit/" not in path
            else None
        )
        if path == "api/repos/create":
            return self.create(
                f"datasets/{given['organization']}/{given['name']}", given
            )
        name = (
            path.removeprefix("api/")
            .split("/preupload/")[0]
            .split("/commit/")[0]
            .split(".git/")[0]
        )
        if name not in self.server.repositories:
            return self.answer(
                404, X_Error_Code="RepoNotFound", X_Error_Message="Repo not found"
            )
        if "/preupload/" in path:
            modes = [
                (file["path"], "lfs" if file["path"].endswith(LARGE) else "regular")
                for file in given["files"]
            ]
            files = [
                {"path": p, "uploadMode": mode, "shouldIgnore": False, "oid": None}
                for p, mode in modes
            ]
            return self.answer(200, {"files": files})
        if path.endswith("objects/batch"):
            where = f"{self.server.address}/upload/{name}"
            objects = []
            for item in given["objects"]:
                upload = {"href": f"{where}/{item['oid']}", "header": {}}
                objects.append({**item, "actions": {"upload": upload}})
            return self.answer(200, {"transfer": "basic", "objects": objects})
        return self.commit(name)

    def create(self, name, given):
        if name in self.server.repositories:
            url = f"{self.server.address}/{name}"
            return self.answer(
                409, {"error": "You already created this dataset repo", "url": url}
            )
        folder = self.server.root / name.replace("/", "--")
        folder.mkdir()
        self.server.add(
            name, {"0" * 40: folder}, private=given.get("visibility") == "private"
        )
        return self.answer(200, {"url": f"{self.server.address}/{name}"})

    def commit(self, name):
        repository = self.server.repositories[name]
        folder = repository.commits[repository.refs["main"]]
        for line in self.body.splitlines():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "header":
                self.server.messages.append(value["summary"])
                continue
            large = entry["key"] == "lfsFile"
            target = folder / value["path"]
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(
                self.server.uploaded[value["oid"]]
                if large
                else base64.b64decode(value["content"])
            )
        found = {
            "commitUrl": f"{self.server.address}/{name}/commit/{'0' * 40}",
            "commitOid": "0" * 40,
        }
        return self.answer(200, {"success": True, **found})


class PushHub(Hub):
    """A hub with a folder for what is pushed; `messages` of its commits."""

    handler = _PushHandler

    def __init__(self, root):
        super().__init__()
        self.root, self.uploaded, self.messages = Path(root), {}, []
