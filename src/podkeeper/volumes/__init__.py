"""Volumes of pods on this machine.

One file per volume kind, and `HostVolumes`, which mounts and unmounts them.

    pod --plan (API objects are read)--> one plan per volume --set up (in a thread)--> host paths
                                              |
         refresh (periodic) -----------------'  changed payloads are swapped in atomically

The state of mounted volumes is on disk and in the mount table, so a restarted agent needs no other state.
Files behind a mount or a symbolic link are never deleted. Kubelet counterparts: pkg/volume and
pkg/kubelet/volumemanager.
"""
