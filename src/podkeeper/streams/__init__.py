"""Streams to containers: exec, attach and port-forward over SPDY/3.1.

    a CRI runtime answers Exec, Attach and PortForward with a URL
    upgrade.py         connect to that URL and switch to SPDY/3.1
    connection.py      many streams over one connection
    frames.py          the frames of the protocol, as values; headers.py: compressed header blocks
    windows.py         flow control
    remote_command.py  exec and attach: streams for stdin, stdout, stderr, terminal size and exit status
    port_forward.py    TCP connections to a port of a pod

SPDY/3.1 is obsolete, and no maintained Python library supports it. But it is the only protocol of containerd and CRI-O
that can send the end of stdin. Their WebSocket protocol cannot. Go counterparts: github.com/moby/spdystream and
client-go's `tools`.
"""
