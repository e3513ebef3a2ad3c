"""Operations on the agent's own machine.

Pod cgroups, network probes, log files, credentials and the clock.
"""
