"""Busybox images for tests: as an archive for `ctr images import`, and in a small registry.

The registry is read-only and serves in the network namespace of its caller. Repositories below `private/` need
credentials.
"""

import base64
import hashlib
import io
import json
import os
import platform
import subprocess
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

BUSYBOX = Path("/bin/busybox")
USER, PASSWORD = "somebody", "a-password"

_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


class Store:
    """Blobs by digest, and images by name."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.images: dict[str, dict[str, Any]] = {}

    def add(self, name: str, config: Mapping[str, Any]) -> None:
        """Add an image with busybox."""
        layer = self._put(_busybox_layer())
        kind = {"architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()), "os": "linux"}
        rootfs = {"type": "layers", "diff_ids": [layer["digest"]]}
        described = {**kind, "config": {"Env": ["PATH=/bin"], **config}, "rootfs": rootfs, "history": []}
        manifest = {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": {"mediaType": _CONFIG, **self._put(json.dumps(described).encode())},
            "layers": [{"mediaType": _LAYER, **layer}],
        }
        stored = self._put(json.dumps(manifest).encode())
        self.images[name] = {"mediaType": _MANIFEST, **stored, "platform": kind}

    def archive(self, *names: str) -> bytes:
        """Return images as one OCI archive."""
        index = {
            "schemaVersion": 2,
            "manifests": [{**self.images[name], "annotations": {"io.containerd.image.name": name}} for name in names],
        }
        files = {"oci-layout": b'{"imageLayoutVersion":"1.0.0"}', "index.json": json.dumps(index).encode()}
        files |= {f"blobs/{digest.replace(':', '/')}": data for digest, data in self.blobs.items()}
        return _tar((_file(name, data) for name, data in files.items()))

    def _put(self, data: bytes) -> dict[str, Any]:
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        self.blobs[digest] = data
        return {"digest": digest, "size": len(data)}


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Log nothing: some clients try TLS first and disconnect."""


@contextmanager
def registry(store: Store, port: int) -> Iterator[None]:
    """Serve images with names below `localhost:PORT/`. Serve others as a mirror does: below their full names."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer(body=True)

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

        def _answer(self, *, body: bool) -> None:
            status, kind, data = _find(store, port, self.path, self.headers["Authorization"])
            self.send_response(status)
            if status == 401:
                self.send_header("WWW-Authenticate", 'Basic realm="tests"')
            if status == 200 and kind == _MANIFEST:
                self.send_header("Docker-Content-Digest", f"sha256:{hashlib.sha256(data).hexdigest()}")
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if body:
                self.wfile.write(data)

    with _Server(("127.0.0.1", port), Handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, name="registry", daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join(10)


def _find(store: Store, port: int, path: str, credentials: str | None) -> tuple[int, str, bytes]:
    nothing = "application/json"
    match path.strip("/").split("/"):
        case ["v2"]:  # CRI-O sends credentials only if this answers 401
            return 401, nothing, b'{"errors":[{"code":"UNAUTHORIZED"}]}'
        case ["v2", *repository, "manifests" | "blobs" as what, reference]:
            wanted = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
            if repository[0] == "private" and credentials != wanted:
                return 401, nothing, b'{"errors":[{"code":"UNAUTHORIZED"}]}'
            name = f"{'/'.join(repository)}:{reference}"
            found = store.images.get(f"localhost:{port}/{name}") or store.images.get(name)
            digest = reference if found is None else found["digest"]
            if digest in store.blobs:
                return 200, _MANIFEST if what == "manifests" else "application/octet-stream", store.blobs[digest]
    return 404, nothing, b'{"errors":[{"code":"MANIFEST_UNKNOWN"}]}'


@cache
def _busybox_layer() -> bytes:
    """Return a file system with busybox, links for all its commands, /etc/passwd, /etc/group and /tmp."""
    names = subprocess.run([BUSYBOX, "--list"], capture_output=True, text=True, check=True).stdout.split()
    parts = [_directory(name) for name in ("bin", "etc", "root", "home")]
    parts += [_directory("tmp", 0o1777), _file("bin/busybox", BUSYBOX.read_bytes(), 0o755)]
    parts += [_file("etc/passwd", b"root:x:0:0:root:/root:/bin/sh\nsomebody:x:1000:1000::/home:/bin/sh\n")]
    parts += [_file("etc/group", b"root:x:0:\nsomebody:x:1000:\n")]
    parts += [_link(f"bin/{name}", "busybox") for name in names if name != "busybox"]
    return _tar(iter(parts))


def _tar(parts: Iterator[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for about, data in parts:
            archive.addfile(about, io.BytesIO(data))
    return made.getvalue()


def _file(name: str, data: bytes, mode: int = 0o644) -> tuple[tarfile.TarInfo, bytes]:
    about = tarfile.TarInfo(name)
    about.mode, about.size = mode, len(data)
    return about, data


def _directory(name: str, mode: int = 0o755) -> tuple[tarfile.TarInfo, bytes]:
    about = tarfile.TarInfo(name)
    about.type, about.mode = tarfile.DIRTYPE, mode
    return about, b""


def _link(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    about = tarfile.TarInfo(name)
    about.type, about.linkname = tarfile.SYMTYPE, os.fspath(target)
    return about, b""
