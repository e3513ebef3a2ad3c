"""Paths of fields in objects.

A module of its own, because `model.manifest` imports the YAML parser, which an agent without manifests does not need.
"""

FieldPath = tuple[str, ...]
"""The path of a field: names, and list indexes as text."""
