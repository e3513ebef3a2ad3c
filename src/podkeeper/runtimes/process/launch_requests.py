"""Build a keeper's `create` request from the engine's container configuration.

The container's security context overrides the pod's, as in the kubelet. The image is the host's files, so /etc/passwd
and /etc/group of the host apply. A user without a configured group gets its primary group of the host, and its
supplementary groups unless the pod's policy is Strict. PATH, HOME, HOSTNAME and TERM are added to the environment, as
an image or containerd would.

Kubelet counterpart: `DetermineEffectiveSecurityContext` in pkg/securitycontext. containerd does the rest.
"""

import grp
import os
import posixpath
import pwd
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Final

from podkeeper.linux import cgroup
from podkeeper.linux.capabilities import bounding_set
from podkeeper.linux.devices import DEFAULT, Device, device_at
from podkeeper.linux.errors import LaunchError
from podkeeper.model.errors import RuntimeRefused
from podkeeper.model.k8s.core import Pod, PodSecurityContext, SecurityContext
from podkeeper.model.pods import AnyContainer
from podkeeper.model.runtime import LinuxUser
from podkeeper.model.runtime_calls import ContainerConfig
from podkeeper.rules.cgroup.limits import container_limits, files_of
from podkeeper.rules.cgroup.oom_score import oom_score_of
from podkeeper.runtimes.process.keeper.files import Json
from podkeeper.runtimes.process.keeper.launch import DEFAULT_PATH, MASKED_PATHS, READ_ONLY_PATHS, Bind, Launch
from podkeeper.runtimes.process.seccomp_profiles import SeccompFilter, seccomp_filter_of

DEFAULT_MESSAGE_PATH: Final = "/dev/termination-log"


@dataclass(frozen=True, slots=True)
class KeeperSandbox:
    """The sandbox that a container is created in."""

    directory: str
    hostname: str = ""
    cgroup_parent: str = ""
    hidden: tuple[str, ...] = ()  # directories that containers cannot see
    most_processes: int = 0  # limit of the pod, 0: no limit
    seccomp_directory: str = ""  # of Localhost profiles


def request_of(config: ContainerConfig, container_id: str, sandbox: KeeperSandbox) -> Json:
    """Return the `create` request for a keeper. Raises RuntimeRefused."""
    spec, pod = config.container, config.pod
    home = os.path.join(sandbox.directory, "containers", container_id)
    return {
        "container": container_id,
        "launch": _launch(config, home, sandbox).to_json(),
        "log": config.log_path,
        "stdin": bool(spec.stdin),
        "stdin_once": bool(spec.stdin_once),
        "message_policy": spec.termination_message_policy or "",
        "stop_signal": (spec.lifecycle.stop_signal if spec.lifecycle is not None else None) or "",
        "oom_score_adj": oom_score_of(pod, spec, _memory_bytes()),
        "cgroup": _cgroup(config, container_id, sandbox.cgroup_parent),
    }


def user_of(pod: Pod, spec: AnyContainer) -> LinuxUser | None:
    """Return the user of a container's processes. None: the agent's own user."""
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


def _launch(config: ContainerConfig, home: str, sandbox: KeeperSandbox) -> Launch:
    spec, pod = config.container, config.pod
    user = user_of(pod, spec)
    argv = (*config.command, *config.args)
    if not argv:
        text = "no command specified: the host's files have no entrypoint, so set command or args"
        raise RuntimeRefused(f"cannot create container {spec.name}: {text}")
    own = spec.security_context or SecurityContext()
    capabilities = own.capabilities
    added, dropped = tuple((capabilities and capabilities.add) or ()), tuple((capabilities and capabilities.drop) or ())
    seccomp = _seccomp(config, sandbox, added, dropped)
    unmasked = own.proc_mount == "Unmasked"
    return Launch(
        argv=argv,
        env=_environment(config.env, user, sandbox.hostname, tty=bool(spec.tty)),
        cwd=spec.working_dir or "",
        hostname=sandbox.hostname,
        directory=home,
        binds=_binds(config, home),
        hidden=sandbox.hidden,
        user=None if user is None else user.uid,
        group=None if user is None else user.gid,
        groups=() if user is None else user.supplemental_groups,
        capabilities_add=added,
        capabilities_drop=dropped,
        privileged=bool(own.privileged),
        seccomp=seccomp.program,
        seccomp_flags=seccomp.flags,
        seccomp_required=seccomp.required,
        keyring=f"podkeeper-{os.path.basename(home)}",
        no_new_privileges=own.allow_privilege_escalation is False,
        read_only_root=bool(own.read_only_root_filesystem),
        pid="host" if pod.spec.host_pid else "pod" if pod.spec.share_process_namespace else "own",
        ipc="host" if pod.spec.host_ipc else "pod",
        uts="host" if pod.spec.host_network else "pod",
        tty=bool(spec.tty),
        masked=() if unmasked else MASKED_PATHS,
        read_only_paths=() if unmasked else READ_ONLY_PATHS,
        most_processes=sandbox.most_processes,
    )


def _seccomp(
    config: ContainerConfig, sandbox: KeeperSandbox, added: tuple[str, ...], dropped: tuple[str, ...]
) -> SeccompFilter:
    own = config.container.security_context
    try:
        held = bounding_set(added, dropped, own is not None and bool(own.privileged))
    except LaunchError:  # an unknown name; the keeper reports it
        held = frozenset()
    return seccomp_filter_of(config.pod, config.container, held, sandbox.seccomp_directory)


def _binds(config: ContainerConfig, home: str) -> tuple[Bind, ...]:
    """Return the mounts, and the termination message file unless a volume is mounted at its path."""
    nodes = _device_volumes(config.pod)
    binds = [
        Bind(
            mount.host_path,
            mount.container_path,
            mount.read_only,
            mount.propagation,
            sub_path=mount.sub_path,
            device=mount.volume in nodes,
        )
        for mount in config.mounts
    ]
    path = posixpath.join("/", config.container.termination_message_path or DEFAULT_MESSAGE_PATH)
    if all(bind.target != path for bind in binds):
        # Optional, because a container without mounts can still run. It only has no termination message.
        binds.append(Bind(os.path.join(home, "termination"), path, optional=True))
    return tuple(binds)


def _device_volumes(pod: Pod) -> set[str]:
    """Return the volumes whose device node works in a container."""
    return {
        volume.name
        for volume in pod.spec.volumes or ()
        if volume.host_path is not None and volume.host_path.type in ("CharDevice", "BlockDevice")
    }


def _devices(config: ContainerConfig) -> tuple[Device, ...] | None:
    """Return the devices that a container may use, None: all."""
    own = config.container.security_context
    if own is not None and own.privileged:
        return None
    nodes = _device_volumes(config.pod)
    found = [*DEFAULT]
    for mount in config.mounts:
        if mount.volume in nodes:
            try:
                found.append(device_at(mount.host_path, read_only=mount.read_only))
            except OSError as error:
                text = f"cannot use the device of volume {mount.volume}: {error}"
                raise RuntimeRefused(f"cannot create container {config.container.name}: {text}") from error
    return tuple(found)


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
    # The spec wins.
    return {**added, **env}


def _cgroup(config: ContainerConfig, container_id: str, parent: str) -> Json | None:
    if not parent:
        return None
    place = cgroup.find(parent)
    if place is None:
        raise RuntimeRefused(f"cannot create container {config.container.name}: cgroup {parent} of its pod not found")
    settings = files_of(container_limits(config.pod.spec, config.container), place.version)
    devices = _devices(config)
    return {
        "place": cgroup.descendant(place, container_id).to_json(),
        "settings": settings,
        "devices": None if devices is None else [asdict(device) for device in devices],
    }


def _memory_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _account(uid: int) -> tuple[str, int]:
    """Return a user's name and primary group. An unknown user has no name and the group of root."""
    try:
        account = pwd.getpwuid(uid)
    except KeyError:
        return "", 0
    return account.pw_name, account.pw_gid


def _memberships(name: str) -> tuple[int, ...]:
    return tuple(group.gr_gid for group in grp.getgrall() if name in group.gr_mem)
