"""The three patch types of the Kubernetes API over JSON: create and apply.

    strategic    strategic merge patch: lists are merged by key, as the API's types define
    merge        JSON merge patch (RFC 7386): objects are merged, everything else is replaced
    json_patch   JSON patch (RFC 6902): a list of operations on JSON pointers

Inputs and outputs are decoded JSON values. No function changes its input. Results share every part that did not change.
An invalid patch raises only `PatchError`.
"""
