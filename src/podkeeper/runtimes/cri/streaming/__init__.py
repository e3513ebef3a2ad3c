"""Talking with containers through a CRI runtime: exec, attach and port-forward.

    Exec, Attach, PortForward over gRPC -> a URL with a token
    upgrade.py         that URL -> a connection that speaks SPDY/3.1
    connection.py      many streams over one connection
    frames.py          what travels on it, as values; headers.py: how names travel small
    remote_command.py  exec and attach: streams for input, output, errors, sizes and the end
    port_forward.py    TCP connections to a port of a pod

SPDY/3.1 is old and no library for it is left, but it is what the streaming servers of containerd and CRI-O speak: their
WebSockets know no end of the input. The Go ancestors are github.com/moby/spdystream and client-go's `tools`.
"""
