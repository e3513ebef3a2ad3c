"""Nouns: Kubernetes objects, runtime records, messages between rooms, errors."""
