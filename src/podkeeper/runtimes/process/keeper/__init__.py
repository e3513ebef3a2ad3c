"""The processes beside the agent: fork server, keepers and container setup.

Only the standard library and `podkeeper.linux` are imported here, because each keeper pays for every
import. For the same reason, this file contains no code.
"""
