"""Linux mechanisms for the agent and the keepers, one implementation each.

This package uses only the standard library, so that a keeper process starts fast and stays small.

    errors           the error of a container that cannot be started
    libc             system calls that Python does not have
    mounts           the mount table, mounting and unmounting
    tree             directory trees that other processes write to: open, create, remove, measure
    subpath          open a sub-path of a volume without leaving the volume
    cgroup           cgroup directories: create, limit, kill, remove
    cgroup_support   detect the usable cgroup hierarchies of this machine
    devices          limit the devices of a cgroup
    idmap            user namespaces and subordinate ids
    capabilities     the capability set of a container
    seccomp          compile a seccomp profile to a BPF program
    seccomp_profile  seccomp profiles as data
    seccomp_default  the profile RuntimeDefault
    seccomp_json     read Localhost profiles
    seccomp_program  assemble BPF
    syscall_numbers  generated: the numbers of all system calls
    container_log    write container logs in the CRI format
    logline          read container logs (pure, so that `rules` and `streams` can import it)
    termination      read termination messages
"""
