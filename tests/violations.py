"""Checks inside fakes that fail the test even if the code under test catches the exception.

The engine's tasks catch `Exception` and log it, because one pod's trouble must not end the others. An assertion in a
fake that such a task calls would end there too. `violation` records the message before it is raised, and a hook in
`conftest.py` fails the test whose call left a record.
"""

_found: list[str] = []


def violation(message: str) -> AssertionError:
    """Record a violation. Raise what is returned, so that the code under test does not go on."""
    _found.append(message)
    return AssertionError(message)


def take_violations() -> list[str]:
    """All violations since the last call."""
    found = list(_found)
    _found.clear()
    return found
