"""The three kinds of patch of the Kubernetes API, over plain JSON values: making them and applying them.

    strategic    strategic merge patch: lists are merged by key, as the API's types say
    merge        JSON merge patch (RFC 7386): objects are merged, everything else is replaced
    json_patch   JSON patch (RFC 6902): a list of operations on JSON pointers

In come decoded JSON values, out go decoded JSON values. No function here changes what it was given; results
share every part that did not change. Whatever a patch holds, the worst that can happen is a `PatchError`.
"""
