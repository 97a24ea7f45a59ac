"""A hub, an S3-compatible store and a web server on loopback, as far as their clients ask them; each tells what was read of it."""

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any, ClassVar
from urllib.parse import parse_qs, unquote, urlsplit

from web_server import answering

XML = '<?xml version="1.0" encoding="UTF-8"?>'
LARGE = 1000
"""Files with more bytes are kept as the hub keeps large ones: by their sha256."""


@dataclass
class Files:
    """What a server holds, and what was read of it."""

    content: dict[str, bytes]
    secret: str = ""
    """What a request's Authorization has to contain."""
    ranges: bool = True
    fail_after: int | None = None
    """Bytes that are still served before a connection breaks."""
    read_only: bool = False
    refuse_writes: int = 0
    """Requests to write that still fail."""
    written: list[str] = field(default_factory=list)
    """Names, in their order."""
    held: bool = False
    """After the first request, no file is sent before `release` is set."""
    release: threading.Event = field(default_factory=threading.Event)
    served: int = 0
    requests: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


class Handler(BaseHTTPRequestHandler):
    """GET and HEAD of files with ranges; what a kind of server has besides is a subclass's."""

    files: ClassVar[Files]
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(head=True)

    def do_GET(self) -> None:
        self._answer(head=False)

    def do_POST(self) -> None:
        self._answer(head=False)

    def _answer(self, head: bool) -> None:
        self.files.requests.append(self.path)
        if self.files.secret not in self.headers.get("Authorization", ""):
            return self.text(403, "denied")
        return self.respond(unquote(urlsplit(self.path).path), head)

    def respond(self, path: str, head: bool) -> None:
        self.file(path.lstrip("/"), head)

    def file(self, name: str, head: bool) -> None:
        if name not in self.files.content:
            return self.text(404, f"no {name}")
        content = self.files.content[name]
        given = self.headers.get("Range") if self.files.ranges else None
        start, end = _range(given, len(content))
        self.send_response(206 if given else 200)
        self.send_header("Content-Length", str(end - start))
        self.send_header("Last-Modified", "Wed, 01 Jul 2026 00:00:00 GMT")
        self.send_header("ETag", f'"{hashlib.md5(content).hexdigest()}"')
        if self.files.ranges:
            self.send_header("Accept-Ranges", "bytes")
        if given:
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(content)}")
        self.end_headers()
        if not head:
            self._send(content[start:end])
        return None

    def _send(self, content: bytes) -> None:
        if self.files.held and len(self.files.requests) > 1:
            self.files.release.wait()
        with self.files.lock:
            left = self.files.fail_after
            sent = content if left is None else content[:left]
            self.files.fail_after = None if left is None or len(sent) < len(content) else left - len(sent)
            self.files.served += len(sent)
        self.wfile.write(sent)
        if len(sent) < len(content):
            self.close_connection = True

    def text(self, status: int, text: str, kind: str = "text/plain", headers: Mapping[str, str] = {}) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


class Hub(Handler):
    """One repository, `org/thing`, a model and a data set alike; its only branch is main."""

    COMMIT = "a" * 40

    def respond(self, path: str, head: bool) -> None:
        match path.strip("/").split("/"):
            case ["api", "models" | "datasets", "org", "thing"] | ["api", _, "org", "thing", "revision", _]:
                if path.endswith("missing"):
                    return self.text(404, "{}", headers={"X-Error-Code": "RevisionNotFound"})
                return self.text(200, json.dumps({"id": "org/thing", "sha": self.COMMIT, "siblings": []}))
            case ["api", _, "org", "thing", "tree", _, *below]:
                return self.text(200, json.dumps(self._tree("/".join(below))))
            case ["api", _, "org", "thing", "paths-info", _]:
                asked = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
                return self.text(200, json.dumps([e for e in self._tree("") if e["path"] in unquote(asked)]))
            case ["org", "thing", "resolve", self.COMMIT, *name]:
                return self.file("/".join(name), head)
            case ["datasets", "org", "thing", "resolve", self.COMMIT, *name]:
                return self.file("/".join(name), head)
        return self.text(404, "{}", headers={"X-Error-Code": "RepoNotFound"})

    def _tree(self, below: str) -> list[dict[str, Any]]:
        return [self._entry(n, c) for n, c in sorted(self.files.content.items()) if n.startswith(below)]

    def _entry(self, name: str, content: bytes) -> dict[str, Any]:
        blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        entry = {"type": "file", "path": name, "size": len(content), "oid": blob}
        if len(content) <= LARGE:
            return entry
        return entry | {"lfs": {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}}


class S3(Handler):
    """Buckets by the first part of a file's name: list (version 2), head, get, put whole or in parts, delete."""

    def do_PUT(self) -> None:
        self._answer(head=False)

    def do_DELETE(self) -> None:
        self._answer(head=False)

    def respond(self, path: str, head: bool) -> None:
        name, query = path.lstrip("/"), parse_qs(urlsplit(self.path).query, keep_blank_values=True)
        match self.command:
            case "PUT" | "POST" if self.files.read_only:
                return self.text(403, XML + "<Error><Code>AccessDenied</Code><Message>denied</Message></Error>")
            case "PUT":
                return self._put(name, query)
            case "POST":
                return self._multipart(name, query)
            case "DELETE":
                self.files.content.pop(name, None)
                return self.text(204, "")
        return self._get(path, head)

    def _put(self, name: str, query: Mapping[str, list[str]]) -> None:
        part = f"{name}?{int(query['partNumber'][0]):05}" if "partNumber" in query else name
        body = self._body()
        with self.files.lock:
            broken, self.files.refuse_writes = self.files.refuse_writes > 0, max(0, self.files.refuse_writes - 1)
            if not broken:
                self.files.content[part] = body
                self.files.written.append(part)
        if broken:
            return self.text(500, XML + "<Error><Code>InternalError</Code><Message>broken</Message></Error>")
        return self.text(200, "", headers={"ETag": f'"{hashlib.md5(body).hexdigest()}"'})

    def _multipart(self, name: str, query: Mapping[str, list[str]]) -> None:
        self._body()
        if "uploads" in query:
            found = f"<InitiateMultipartUploadResult><Key>{name}</Key><UploadId>1</UploadId></InitiateMultipartUploadResult>"
            return self.text(200, XML + found, "application/xml")
        parts = sorted(part for part in self.files.content if part.startswith(f"{name}?"))
        self.files.content[name] = b"".join(self.files.content.pop(part) for part in parts)
        result = f'<CompleteMultipartUploadResult><Key>{name}</Key><ETag>"1"</ETag></CompleteMultipartUploadResult>'
        return self.text(200, XML + result, "application/xml")

    def _body(self) -> bytes:
        """Also as `aws-chunked`, whose chunks have their sizes in front."""
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            body = b"".join(iter(self._chunk, b""))
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if "aws-chunked" not in self.headers.get("Content-Encoding", ""):
            return body
        found = b""
        while body:
            size, _, body = body.partition(b"\r\n")
            count = int(size.partition(b";")[0], 16)
            found, body = found + body[:count], body[count + 2 :] if count else b""
        return found

    def _chunk(self) -> bytes:
        count = int(self.rfile.readline().strip(), 16)
        found = self.rfile.read(count)
        self.rfile.readline()
        return found

    def _get(self, path: str, head: bool) -> None:
        bucket, _, key = path.lstrip("/").partition("/")
        query = parse_qs(urlsplit(self.path).query)
        if key:
            return self.file(f"{bucket}/{key}", head)
        return self._list(bucket, query.get("prefix", [""])[0])

    def _list(self, bucket: str, prefix: str) -> None:
        found = {n.removeprefix(f"{bucket}/"): c for n, c in self.files.content.items() if n.startswith(f"{bucket}/")}
        entries = "".join(
            f"<Contents><Key>{key}</Key><LastModified>2026-07-01T00:00:00.000Z</LastModified><ETag>&quot;1&quot;</ETag>"
            f"<Size>{len(content)}</Size><StorageClass>STANDARD</StorageClass></Contents>"
            for key, content in sorted(found.items())
            if key.startswith(prefix)
        )
        self.text(
            200,
            '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"<Name>{bucket}</Name><Prefix>{prefix}</Prefix><KeyCount>{entries.count('<Key>')}</KeyCount><IsTruncated>false</IsTruncated>{entries}</ListBucketResult>",
            "application/xml",
        )


def _range(given: str | None, size: int) -> tuple[int, int]:
    if not given:
        return 0, size
    first, _, last = given.removeprefix("bytes=").partition("-")
    return int(first), min(int(last) + 1, size) if last else size


@contextmanager
def serving(kind: type[Handler], content: dict[str, bytes], **options: Any) -> Iterator[tuple[str, Files]]:
    """The server's address, and what it holds."""
    files = Files(content, **options)
    with answering(type(kind.__name__, (kind,), {"files": files})) as address:
        try:
            yield address, files
        finally:
            files.release.set()
