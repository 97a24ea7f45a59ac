"""A registry of images that gives and takes nothing: on the loopback of each node, in place of that of a stranger's cluster.

python -m e2e.registry PORT BLOBS NAME:TAG=LAYOUT...

A layout is an OCI one whose blobs lie in BLOBS. The protocol is the pull half of the OCI distribution specification.
"""

import json
import shutil
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

MANIFEST = "application/vnd.oci.image.manifest.v1+json"


class Registry(BaseHTTPRequestHandler):
    """`tags`: digest of the manifest by (name, tag)."""

    protocol_version = "HTTP/1.1"
    blobs: Path
    tags: dict[tuple[str, str], str]

    def do_HEAD(self) -> None:
        self._serve(body=False)

    def do_GET(self) -> None:
        self._serve(body=True)

    def _serve(self, body: bool) -> None:
        if self.path == "/v2/":
            self._head(200, 0, "application/json")
            return
        name, kind, reference = self.path.removeprefix("/v2/").split("?")[0].rsplit("/", 2)
        digest = self.tags.get((name, reference), reference) if kind == "manifests" else reference
        file = self.blobs / "sha256" / digest.removeprefix("sha256:")
        if not digest.startswith("sha256:") or not file.is_file():
            self._head(404, 0, "application/json")
            return
        self._head(200, file.stat().st_size, MANIFEST if kind == "manifests" else "application/octet-stream", digest)
        if body:
            with file.open("rb") as blob:
                shutil.copyfileobj(blob, self.wfile)

    def _head(self, status: int, length: int, kind: str, digest: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(length))
        self.send_header("Content-Type", kind)
        if digest:
            self.send_header("Docker-Content-Digest", digest)
        self.end_headers()


def main(port: str, blobs: str, *images: str) -> None:
    tags = {}
    for image in images:
        name, _, layout = image.partition("=")
        (manifest,) = json.loads((Path(layout) / "index.json").read_text())["manifests"]
        tags[name.rpartition(":")[0], name.rpartition(":")[2]] = manifest["digest"]
    handler = type("Bound", (Registry,), {"blobs": Path(blobs), "tags": tags})
    ThreadingHTTPServer(("127.0.0.1", int(port)), handler).serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
