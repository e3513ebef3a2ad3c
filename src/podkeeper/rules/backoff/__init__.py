"""Backoff of failing containers and image pulls."""
