"""Joined messages of several failures."""

from podkeeper.rules.joined import joined_messages


def test_joined_messages_have_no_duplicates() -> None:
    assert joined_messages(["x"]) == joined_messages(["x", "x"]) == "x"
    assert joined_messages(["x", "y", "x"]) == "[x, y]"
