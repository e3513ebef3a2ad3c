"""Validation: would the reference's API have taken this pod? `pod` is the door, `names` has the words."""
