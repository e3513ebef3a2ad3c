"""Volumes of this machine: one file per kind, and `HostVolumes`, which sets them up and takes them down.

    pod --plan (objects are read)--> one plan per volume --set up (in a thread)--> host paths
                                          |
         refresh, now and then -----------'  payloads that changed are swapped in atomically

Nothing is known by heart: what is ready is seen on disk and in the kernel's list of mounts, so an agent that starts
anew goes on where the last one ended. Nothing is ever deleted through a mount or a symbolic link. The Go ancestors are
pkg/volume and pkg/kubelet/volumemanager.
"""
