"""Pod validation as in the API server.

`pod` is the entry point, `names` has the field errors.
"""
