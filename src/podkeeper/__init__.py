"""Podkeeper: the Kubernetes node agent, in Python.

The rooms of the house, and what each may know of the others, are in `docs/architecture.md`.
"""

__version__ = "0.1.0.dev0"
