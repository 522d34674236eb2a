"""A hub on this machine: the routes, headers, redirects, gates and failures of the real one, for any test.

    with Hub() as hub:
        hub.add("someone/tiny", {"a" * 40: folder})
        subprocess.run(…, env=hub.environment(home))

Files of `LARGE` endings are served as the hub serves LFS: a redirect to another path, with the SHA-256 as etag. What is
added under `datasets/…` is a data set.
"""

import hashlib
import json
import os
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

LARGE = (".safetensors", ".bin", ".parquet", ".zip", ".wav", ".flac", ".png")
TOKEN = "hf_good"
"""The only token that is valid."""


@dataclass
class Repository:
    """Folders by commit; names of revisions; `gated`: its files need a token; `private`: all of it does."""

    commits: dict[str, Path]
    refs: dict[str, str] = field(default_factory=dict)
    gated: bool = False
    private: bool = False

    def __post_init__(self):
        self.refs.setdefault("main", list(self.commits)[-1])

    def commit(self, revision):
        return revision if revision in self.commits else self.refs.get(revision)


class Hub(ThreadingHTTPServer):
    """Repositories by id, ids that were renamed, and what happens instead of an answer.

    fault     for every request: a status, "html" (a page with status 200), "redirect" (to such a page), "json" (another
              service's), "cut" (a body that ends early), "hang up" (no answer); None: none.
    fault_at  only paths that hold this fail
    tampered  names of files whose bodies are changed at one byte, same size
    requests  `GET /path` of all requests; `fetched` `<first letter of commit> <file>` of all bodies
    """

    daemon_threads = True
    handler = None
    """What answers, if not `_Handler`."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), self.handler or _Handler)
        self.repositories, self.renamed = {}, {}
        self.fault, self.fault_at, self.tampered = None, "", set()
        self.requests, self.fetched = [], []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def add(self, name, commits, **options):
        self.repositories[name] = Repository(commits, **options)

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server_port}"

    def environment(self, home, **more):
        """Variables of a process for which this is the hub, and `home` its cache."""
        kept = {
            k: v
            for k, v in os.environ.items()
            if not k.startswith(("HF_", "TRANSFORMERS_"))
        }
        own = {
            "HF_ENDPOINT": self.address,
            "HF_HOME": str(home),
            "OMP_NUM_THREADS": "1",
            "HF_HUB_DISABLE_XET": "1",
        }
        own |= {
            "HF_HUB_ETAG_TIMEOUT": "60",
            "HF_HUB_DOWNLOAD_TIMEOUT": "60",
        }  # of a machine that is busy
        return {**kept, **own, **more}

    def close(self):
        self.shutdown()
        self.server_close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def git_hash(body):
    return hashlib.sha1(f"blob {len(body)}\0".encode() + body).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def answer(self, status, body=b"", **headers):
        if isinstance(body, dict | list):
            body, headers = (
                json.dumps(body).encode(),
                {"Content_Type": "application/json", **headers},
            )
        self.send_response(status)
        for key, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(key.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_GET(self):
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url = urlsplit(self.path)
        path, self.query = unquote(url.path).strip("/"), parse_qs(url.query)
        self.server.requests.append(f"{self.command} /{path}")
        if (
            self.server.fault is not None
            and self.server.fault_at in path
            and path != "login"
        ):
            return self.fail(self.server.fault)
        if path == "login":
            return self.fail("html")
        if path.startswith("cdn/"):
            return self.large(*path.split("/", 3)[1:])
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        if token and token != TOKEN:
            return self.answer(
                401, X_Error_Message="Invalid credentials in Authorization header"
            )
        return self.route(path, bool(token))

    do_HEAD = do_POST = do_PUT = do_GET

    def fail(self, fault):
        page = b"<!doctype html><html><body>Please log in to the hotel's network</body></html>"
        if fault == "html":
            return self.answer(200, page, Content_Type="text/html")
        if fault == "redirect":
            return self.answer(302, Location=f"{self.server.address}/login")
        if fault in ("cut", "hang up"):
            self.close_connection = True
            return (
                self.answer(200, b"x", **{"Content-Length": "4096"})
                if fault == "cut"
                else None
            )
        if fault == "json":
            return self.answer(200, {"status": "ok"})
        more = {"Retry_After": "7"} if fault == 429 else {}
        return self.answer(fault, b"the server says no", **more)

    def route(self, path, known):
        """To the API or to a file, behind the doors of the repository."""
        api = path.startswith("api/")
        rest = path.removeprefix("api/").removeprefix("models/") if api else path
        for old, new in self.server.renamed.items():
            if rest == old or rest.startswith(f"{old}/"):
                moved = path.replace(old, new, 1)
                return self.answer(
                    307,
                    Location=f"/{moved}"
                    + (f"?{urlsplit(self.path).query}" * ("?" in self.path)),
                )
        name = next(
            (
                n
                for n in self.server.repositories
                if rest == n or rest.startswith(f"{n}/")
            ),
            None,
        )
        repository = self.server.repositories.get(name)
        if repository is None or (repository.private and not known):
            return self.answer(
                404 if known else 401,
                X_Error_Code="RepoNotFound",
                X_Error_Message="Repo not found",
            )
        what, *parts = [*rest.removeprefix(name).strip("/").split("/")]
        if api:
            return self.api(name, repository, what, parts)
        commit = repository.commit(parts[0]) if what == "resolve" and parts else None
        if repository.gated and not known:
            return self.answer(
                401,
                X_Error_Code="GatedRepo",
                X_Error_Message="Access to this repository is restricted",
            )
        if commit is None:
            return self.answer(404, X_Error_Code="RevisionNotFound")
        return self.file(name, repository, commit, "/".join(parts[1:]))

    def api(self, name, repository, what, parts):
        if what == "refs":
            refs = [
                (n, f"refs/tags/{n}", c)
                for n, c in repository.refs.items()
                if n != "main"
            ]
            tags = [{"name": n, "ref": r, "targetCommit": c} for n, r, c in refs]
            main = {
                "name": "main",
                "ref": "refs/heads/main",
                "targetCommit": repository.refs["main"],
            }
            return self.answer(200, {"branches": [main], "tags": tags, "converts": []})
        if what not in ("", "revision", "tree", "paths-info"):
            return self.answer(404, X_Error_Code="EntryNotFound")
        commit = repository.commit(parts[0] if parts else "main")
        if commit is None:
            return self.answer(404, X_Error_Code="RevisionNotFound")
        folder = repository.commits[commit]
        files = [f for f in sorted(folder.rglob("*")) if f.is_file()]
        listed = {f.relative_to(folder).as_posix(): f for f in files}
        if what == "tree":
            inside = "/".join(parts[1:])
            return self.answer(
                200, self.tree(folder, inside, bool(self.query.get("recursive")))
            )
        if what == "paths-info":
            return self.answer(200, self.paths(folder, listed))
        siblings = [
            {"rfilename": n, **(_blob(f) if "blobs" in self.query else {})}
            for n, f in listed.items()
        ]
        told = {
            "id": name.removeprefix("datasets/"),
            "sha": commit,
            "siblings": siblings,
            "tags": [],
        }
        return self.answer(
            200,
            {
                **told,
                "gated": "auto" if repository.gated else False,
                "private": repository.private,
            },
        )

    def tree(self, folder, inside, recursive):
        root = folder / inside
        found = (
            sorted(root.rglob("*") if recursive else root.iterdir())
            if root.is_dir()
            else []
        )
        return [_entry(folder, path) for path in found]

    def paths(self, folder, listed):
        if self.headers.get("Content-Type", "").startswith("application/json"):
            wanted = json.loads(self.body or b"{}").get("paths", [])
        else:
            wanted = parse_qs(self.body.decode()).get("paths", [])
        wanted = [wanted] if isinstance(wanted, str) else wanted
        return [
            _entry(folder, folder / name)
            for name in wanted
            if name in listed or (folder / name).is_dir()
        ]

    def file(self, name, repository, commit, file):
        path = repository.commits[commit] / file
        if not path.is_file():
            return self.answer(404, X_Error_Code="EntryNotFound", X_Repo_Commit=commit)
        body = path.read_bytes()
        if file.endswith(LARGE):
            sha = hashlib.sha256(body).hexdigest()
            linked = {
                "X_Linked_ETag": f'"{sha}"',
                "X_Linked_Size": str(len(body)),
                "X_Repo_Commit": commit,
            }
            where = f"{self.server.address}/cdn/{commit}/{sha}/{name}/resolve/{commit}/{file}"
            return self.answer(
                302, Location=where, ETag=f'"{git_hash(body)}"', **linked
            )
        return self.send_file(commit, file, body, f'"{git_hash(body)}"')

    def large(self, commit, sha, rest):
        name, _, file = rest.partition(f"/resolve/{commit}/")
        body = (self.server.repositories[name].commits[commit] / file).read_bytes()
        return self.send_file(commit, file, body, f'"{sha}"')

    def send_file(self, commit, file, body, etag):
        if self.command == "GET":
            self.server.fetched.append(f"{commit[0]} {file}")
            if file in self.server.tampered:
                body = body[:-1] + bytes([body[-1] ^ 1])
        told = {"ETag": etag, "X_Repo_Commit": commit, "Accept_Ranges": "bytes"}
        wanted = (self.headers.get("Range") or "").removeprefix("bytes=")
        if not wanted:
            return self.answer(200, body, **told)
        first, _, last = wanted.partition("-")
        stop = min(int(last) + 1 if last else len(body), len(body))
        return self.answer(
            206,
            body[int(first) : stop],
            Content_Range=f"bytes {first}-{stop - 1}/{len(body)}",
            **told,
        )


def _blob(path):
    body = path.read_bytes()
    large = {
        "lfs": {
            "sha256": hashlib.sha256(body).hexdigest(),
            "size": len(body),
            "pointerSize": 130,
        }
    }
    return {
        "size": len(body),
        "blobId": git_hash(body),
        **(large if path.name.endswith(LARGE) else {}),
    }


def _entry(folder, path):
    name = path.relative_to(folder).as_posix()
    if path.is_dir():
        return {"type": "directory", "path": name, "oid": "0" * 40, "size": 0}
    blob = _blob(path)
    lfs = (
        {
            "lfs": {
                "oid": blob["lfs"]["sha256"],
                "size": blob["size"],
                "pointerSize": 130,
            }
        }
        if "lfs" in blob
        else {}
    )
    return {
        "type": "file",
        "path": name,
        "size": blob["size"],
        "oid": blob["blobId"],
        **lfs,
    }
