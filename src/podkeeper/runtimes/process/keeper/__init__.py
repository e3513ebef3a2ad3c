"""The processes beside the agent: fork server, keepers and container setup.

Only the standard library and `podkeeper.linux` are imported here, because every import costs memory in each keeper. For
the same reason, this file contains no code.
"""
