"""Podkeeper: the Kubernetes node agent, in Python.

`docs/architecture.md` lists the packages and what each may import.
"""

__version__ = "0.1.0.dev0"
