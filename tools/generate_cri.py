"""Generate the CRI message descriptor and type stubs from our `.proto` files.

    python -m tools.generate_cri            # after a change of runtimes/cri/schema/*.proto

Needs `grpcio-tools`, which is in the development environment. The generated files need no compiler.
"""

import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

SCHEMA = Path(__file__).parent.parent / "src" / "podkeeper" / "runtimes" / "cri" / "schema"
PROTOS = ("cri.proto", "containerd_events.proto")


def generated() -> dict[str, bytes]:
    """Return the generated files by name."""
    with tempfile.TemporaryDirectory() as place:
        made = Path(place)
        status = protoc.main(
            ["protoc", f"-I{SCHEMA}", f"--descriptor_set_out={made / 'schema.bin'}", f"--pyi_out={made}", *PROTOS]
        )
        if status != 0:
            raise SystemExit(f"cannot compile the schema: protoc exited with status {status}, see its output above")
        files = {"schema.bin": (made / "schema.bin").read_bytes()}
        for proto in PROTOS:
            stem = proto.removesuffix(".proto")
            files[f"{stem}.pyi"] = (made / f"{stem}_pb2.pyi").read_bytes()
        return files


def main() -> int:
    for name, content in generated().items():
        (SCHEMA / name).write_bytes(content)
        print(f"wrote {SCHEMA.name}/{name}, {len(content)} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
