"""Validation: would the reference's API have taken this pod? `pod` is the door."""

from podkeeper.rules.validate.pod import Occasion, validate_pod

__all__ = ["Occasion", "validate_pod"]
