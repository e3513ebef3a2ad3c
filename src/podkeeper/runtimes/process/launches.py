"""From what the engine wants to what a keeper is asked: a container's spec becomes a `Launch` and what goes with it.

The container's own word goes before its pod's, as in the reference. The host's files are the image, so the host's
users and groups are the image's too: a user without a group gets the one the host gives him, and his other groups
unless the pod wants none but its own. What an image would add to the environment is added here: PATH, HOME, HOSTNAME,
TERM.

The Go ancestors are `DetermineEffectiveSecurityContext` in pkg/securitycontext, `GetContainerOOMScoreAdjust` in
pkg/kubelet/qos, and, for what the reference leaves to it, containerd.
"""

import grp
import os
import posixpath
import pwd
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from podkeeper.model.errors import RuntimeRefused
from podkeeper.model.k8s.core import Container, EphemeralContainer, Pod, PodSecurityContext, SecurityContext
from podkeeper.model.quantity import ZERO
from podkeeper.model.runtime import LinuxUser
from podkeeper.model.runtime_calls import ContainerConfig
from podkeeper.rules.cgroup_limits import container_limits, files_of
from podkeeper.rules.qos import BEST_EFFORT, GUARANTEED, qos_of
from podkeeper.rules.resources import amounts_of
from podkeeper.runtimes.process.keeper import cgroup
from podkeeper.runtimes.process.keeper.files import Json
from podkeeper.runtimes.process.keeper.launch import MASKED_PATHS, READ_ONLY_PATHS, Bind, Launch

DEFAULT_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
DEFAULT_MESSAGE_PATH: Final = "/dev/termination-log"

_GUARANTEED_SCORE: Final = -997
_BEST_EFFORT_SCORE: Final = 1000

Spec = Container | EphemeralContainer


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """Where a container is to live."""

    directory: str  # its sandbox's
    hostname: str = ""
    cgroup_parent: str = ""
    hidden: tuple[str, ...] = ()  # directories that containers are not to look into
    most_processes: int = 0  # of the pod; 0: as many as it likes


def request_of(config: ContainerConfig, container_id: str, place: Whereabouts) -> Json:
    """What a keeper is asked to create. Raises RuntimeRefused."""
    spec, pod = config.container, config.pod
    home = os.path.join(place.directory, "containers", container_id)
    return {
        "container": container_id,
        "launch": _launch(config, home, place).to_json(),
        "log": config.log_path,
        "stdin": bool(spec.stdin),
        "stdin_once": bool(spec.stdin_once),
        "message_policy": spec.termination_message_policy or "",
        "stop_signal": (spec.lifecycle.stop_signal if spec.lifecycle is not None else None) or "",
        "oom_score_adj": oom_score_of(pod, spec),
        "cgroup": _cgroup(config, container_id, place.cgroup_parent),
    }


def user_of(pod: Pod, spec: Spec) -> LinuxUser | None:
    """Who a container's processes are; None: whoever the agent is."""
    own, shared = spec.security_context or SecurityContext(), pod.spec.security_context or PodSecurityContext()
    uid = shared.run_as_user if own.run_as_user is None else own.run_as_user
    gid = shared.run_as_group if own.run_as_group is None else own.run_as_group
    if uid is None and gid is None and os.geteuid() != 0:
        return None
    uid = uid or 0
    name, primary = _account(uid)
    gid = primary if gid is None else gid
    groups = {gid, *(shared.supplemental_groups or ())}
    if shared.fs_group is not None:
        groups.add(shared.fs_group)
    if name and shared.supplemental_groups_policy != "Strict":
        groups.update(_memberships(name))
    return LinuxUser(uid=uid, gid=gid, supplemental_groups=tuple(sorted(groups)))


def oom_score_of(pod: Pod, spec: Spec) -> int:
    """Who is to die first when memory is short: 1000 first, -997 last."""
    if pod.spec.priority_class_name == "system-node-critical":
        return _GUARANTEED_SCORE
    match qos_of(pod):
        case qos if qos == GUARANTEED:
            return _GUARANTEED_SCORE
        case qos if qos == BEST_EFFORT:
            return _BEST_EFFORT_SCORE
    capacity = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    requested = amounts_of(spec.resources.requests).get("memory", ZERO).value
    score = 1000 - 1000 * requested // capacity
    return max(1000 + _GUARANTEED_SCORE, min(score, _BEST_EFFORT_SCORE - 1))


def _launch(config: ContainerConfig, home: str, place: Whereabouts) -> Launch:
    spec, pod = config.container, config.pod
    user = user_of(pod, spec)
    argv = (*config.command, *config.args)
    if not argv:
        text = "no command specified: the host's files have no entrypoint, so a container needs a command or args"
        raise RuntimeRefused(f"cannot create container {spec.name}: {text}")
    own = spec.security_context or SecurityContext()
    capabilities = own.capabilities
    unmasked = own.proc_mount == "Unmasked"
    return Launch(
        argv=argv,
        env=_environment(config.env, user, place.hostname, tty=bool(spec.tty)),
        cwd=spec.working_dir or "",
        hostname=place.hostname,
        directory=home,
        binds=_binds(config, home),
        hidden=place.hidden,
        user=None if user is None else user.uid,
        group=None if user is None else user.gid,
        groups=() if user is None else user.supplemental_groups,
        capabilities_add=tuple((capabilities and capabilities.add) or ()),
        capabilities_drop=tuple((capabilities and capabilities.drop) or ()),
        privileged=bool(own.privileged),
        no_new_privileges=own.allow_privilege_escalation is False,
        read_only_root=bool(own.read_only_root_filesystem),
        pid="host" if pod.spec.host_pid else "pod" if pod.spec.share_process_namespace else "own",
        ipc="host" if pod.spec.host_ipc else "pod",
        uts="host" if pod.spec.host_network else "pod",
        tty=bool(spec.tty),
        masked=() if unmasked else MASKED_PATHS,
        read_only_paths=() if unmasked else READ_ONLY_PATHS,
        most_processes=place.most_processes,
    )


def _binds(config: ContainerConfig, home: str) -> tuple[Bind, ...]:
    """The mounts, and the file for last words unless something else is mounted there."""
    binds = [
        Bind(mount.host_path, mount.container_path, mount.read_only, mount.propagation, sub_path=mount.sub_path)
        for mount in config.mounts
    ]
    path = posixpath.join("/", config.container.termination_message_path or DEFAULT_MESSAGE_PATH)
    if all(bind.target != path for bind in binds):
        binds.append(Bind(os.path.join(home, "termination"), path, optional=True))
    return tuple(binds)


def _environment(env: Mapping[str, str], user: LinuxUser | None, hostname: str, *, tty: bool) -> dict[str, str]:
    added = {"PATH": DEFAULT_PATH}
    if hostname:
        added["HOSTNAME"] = hostname
    if tty:
        added["TERM"] = "xterm"
    try:
        added["HOME"] = pwd.getpwuid(os.geteuid() if user is None else user.uid).pw_dir
    except KeyError:
        added["HOME"] = "/"
    return {**added, **env}


def _cgroup(config: ContainerConfig, container_id: str, parent: str) -> Json | None:
    if not parent:
        return None
    place = cgroup.find(parent)
    if place is None:
        raise RuntimeRefused(f"cannot create container {config.container.name}: cgroup {parent} of its pod is gone")
    settings = files_of(container_limits(config.pod.spec, config.container), place.version)
    return {"place": cgroup.lower(place, container_id).to_json(), "settings": settings}


def _account(uid: int) -> tuple[str, int]:
    """A user's name and primary group; a stranger has no name, and root's group."""
    try:
        account = pwd.getpwuid(uid)
    except KeyError:
        return "", 0
    return account.pw_name, account.pw_gid


def _memberships(name: str) -> tuple[int, ...]:
    return tuple(group.gr_gid for group in grp.getgrall() if name in group.gr_mem)
