"""The whole agent with real things: processes, files, cgroups, sockets. What is missing skips with a reason."""
