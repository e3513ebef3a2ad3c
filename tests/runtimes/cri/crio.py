"""A CRI-O for tests. `shared_instance()` is the one of this test session.

It needs root, `crio` and `pinns` of CRI-O 1.30 or later, conmon, crun, and Debian's containernetworking-plugins and
busybox-static. `missing()` returns what the machine lacks. CRI-O cannot import images, so it pulls them from the tests'
registry, which acts as a mirror. `cri_node.py` has the parts that all runtimes share.
"""

import asyncio
import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from podkeeper.runtimes.cri.calls import CriCalls
from podkeeper.runtimes.cri.transport import GrpcTransport
from tests.runtimes.cri.cri_node import (
    BUSYBOX_IMAGE,
    LOCAL_IMAGE,
    PAUSE,
    PORT,
    CriNode,
    SharedInstance,
    cni_directory,
    missing_programs,
)
from tests.runtimes.cri.netns import in_thread

_CAP_SYS_RESOURCE = 24
_PACKAGES = "CRI-O 1.30 or later (https://cri-o.io, or build it: make bin/crio bin/pinns)"
_MIRRORED = ("docker.io/library", "localhost/podkeeper")
_UNIFIED = Path("/sys/fs/cgroup/unified")

# crun fails if cgroup v2 has some of the controllers and v1 the others, so the wrapper hides cgroup v2.
_WITHOUT_UNIFIED = f"""
if [ "$1" != --hidden ]; then exec unshare --mount --propagation unchanged "$0" --hidden "$@"; fi
shift
mount --make-rprivate {_UNIFIED.parent}
umount {_UNIFIED}
"""
_CHANGING = """
before=
for word; do
    if [ "$before" = --bundle ]; then sed -z -i '%s' "$word/config.json"; fi
    before=$word
done
"""
_NO_HUGE_PAGES = r's|"hugepageLimits": \[[^]]*\]|"hugepageLimits": []|;'
_NO_LOWER_OOM_SCORE = 's|"oomScoreAdj": *-[0-9]*|"oomScoreAdj": 0|;s|"CAP_SYS_RESOURCE"|"CAP_CHOWN"|g;'
_ENVIRONMENT_VARIABLE = "PODKEEPER_TEST_RUNTIME"


def missing() -> str | None:
    """Return what this machine lacks for running CRI-O, or None."""
    if os.geteuid() != 0:
        return "running CRI-O needs root"
    return missing_programs(
        ("crio", _PACKAGES), ("pinns", _PACKAGES), ("conmon", "Debian's conmon"), ("crun", "Debian's crun")
    )


def why_skipped() -> str | None:
    """Return why tests do not run on CRI-O, or None if they do.

    CRI-O must be requested, because it makes the slow tests take half as long again.
    """
    if os.environ.get(_ENVIRONMENT_VARIABLE) != "crio":
        return f"CRI-O was not requested: make e2e RUNTIME=crio (or set {_ENVIRONMENT_VARIABLE}=crio)"
    return missing()


class Crio(CriNode):
    """One CRI-O with its own directories, network and images."""

    name = "cri-o"
    helper = "conmon"

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.more_environment = {
            "CONTAINER_REGISTRIES_CONF": f"{root}/registries.conf",
            "CONTAINER_REGISTRIES_CONF_DIR": f"{root}/registries.conf.d",
            "CONTAINERS_STORAGE_CONF": f"{root}/storage.conf",
        }

    def reload(self) -> None:
        in_thread(lambda: asyncio.run(self._pull()))

    async def _pull(self) -> None:
        transport = GrpcTransport(self.socket)
        try:
            for name in (PAUSE, BUSYBOX_IMAGE, LOCAL_IMAGE):
                await CriCalls(transport).pull_image(name, None)
        finally:
            await transport.close()

    def _command(self) -> list[str]:
        return ["crio", "--config", str(self.root / "crio.conf"), "--config-dir", str(self.root / "crio.conf.d")]

    def _configure(self) -> None:
        for directory in ("crio.conf.d", "registries.conf.d"):
            (self.root / directory).mkdir()
        (self.root / "storage.conf").write_text(  # the settings in crio.conf override these
            f'[storage]\ndriver = "overlay"\ngraphroot = "{self.root}/root"\nrunroot = "{self.root}/run"\n'
        )
        policy = {"default": [{"type": "insecureAcceptAnything"}]}
        (self.root / "policy.json").write_text(json.dumps(policy))
        places = {f"localhost:{PORT}": f"localhost:{PORT}"}
        places |= {prefix: f"localhost:{PORT}/{prefix}" for prefix in _MIRRORED}
        (self.root / "registries.conf").write_text(
            "".join(
                f'[[registry]]\nprefix = "{prefix}"\nlocation = "{location}"\ninsecure = true\n'
                for prefix, location in places.items()
            )
        )
        (self.root / "crio.conf").write_text(f"""
[crio]
root = "{self.root}/root"
runroot = "{self.root}/run"
storage_driver = "overlay"
log_dir = "{self.root}/crio-logs"
version_file = "{self.root}/version"
clean_shutdown_file = "{self.root}/clean.shutdown"
[crio.api]
listen = "{self.socket}"
stream_address = "127.0.0.1"
stream_port = "0"
[crio.runtime]
cgroup_manager = "cgroupfs"
conmon_cgroup = "pod"
default_runtime = "crun"
enable_pod_events = true
hooks_dir = []
namespaces_dir = "{self.root}/ns"
container_exits_dir = "{self.root}/exits"
container_attach_socket_dir = "{self.root}/a"
pinns_path = "{shutil.which("pinns")}"
irqbalance_config_restore_file = "disable"
enable_criu_support = false
[crio.runtime.runtimes.crun]
runtime_path = "{self._oci_runtime()}"
runtime_root = "{self.root}/crun"
monitor_path = "{shutil.which("conmon")}"
monitor_cgroup = "pod"
[crio.image]
pause_image = "{PAUSE}"
pause_command = ""
signature_policy = "{self.root}/policy.json"
signature_policy_dir = "{self.root}/policies"
[crio.network]
network_dir = "{self.root}/cni"
plugin_dirs = ["{cni_directory()}"]
[crio.nri]
enable_nri = false
""")

    def _oci_runtime(self) -> str:
        """Return the path of crun, or of a wrapper if crun would fail on this machine."""
        crun = shutil.which("crun") or "crun"
        before, changes = "", ""
        if not _has_capability(_CAP_SYS_RESOURCE):  # CRI-O has no setting like restrict_oom_score_adj
            changes += _NO_LOWER_OOM_SCORE
        controllers = _UNIFIED / "cgroup.controllers"
        if controllers.exists() and controllers.read_text().strip():
            before = _WITHOUT_UNIFIED
            changes += _NO_HUGE_PAGES
        if not changes:
            return crun
        wrapper = self.root / "oci-runtime"
        wrapper.write_text(f'#!/bin/sh\n{before}{_CHANGING % changes}exec {crun} "$@"\n')
        wrapper.chmod(0o755)
        return str(wrapper)


@cache
def crun_features() -> Mapping[str, Any]:
    """Return the features of crun, or {} for versions before 1.10, which do not report them."""
    done = subprocess.run(["crun", "features"], capture_output=True, check=False)
    try:
        features: Mapping[str, Any] = json.loads(done.stdout)
    except ValueError:
        return {}
    return features


def _has_capability(number: int) -> bool:
    found = re.search(r"^CapEff:\s*([0-9a-f]+)$", Path("/proc/self/status").read_text(), re.MULTILINE)
    return found is not None and bool(int(found[1], 16) >> number & 1)


shared_instance = SharedInstance(Crio).shared_instance
