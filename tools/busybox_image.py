"""Build images from this machine's busybox, for containerd without access to a registry.

    python -m tools.busybox_image docker.io/library/busybox:1.36 registry.k8s.io/pause:3.6 \
        | ctr -n k8s.io images import -

Writes one OCI archive with an image for each given name. An image named `.../pause:...` only sleeps, which is enough
for a sandbox. Needs Debian's busybox-static.
"""

import sys

from tests.runtimes.cri.oci import BUSYBOX, Store

SLEEPS = {"Cmd": ["sleep", "2147483647"]}
SHELL = {"Cmd": ["sh"]}


def main(names: list[str]) -> int:
    if not names or sys.stdout.isatty():
        print(__doc__, file=sys.stderr)
        return 2
    if not BUSYBOX.exists():
        print("cannot find busybox: install it with apt-get install busybox-static", file=sys.stderr)
        return 1
    store = Store()
    for name in names:
        store.add(name, SLEEPS if "/pause:" in name else SHELL)
    sys.stdout.buffer.write(store.archive(*names))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
