"""JSON merge patch (RFC 7386) for API objects.

An object in the patch is merged, null removes a member, anything else (including a list) replaces it. As in the RFC,
null inside a list is an ordinary value. The API server's library also drops null members there.

`apply(a, diff(a, b))` is `b` for every `b` without null outside lists, because the format cannot set a member to null.

Kubelet counterparts: `MergePatch` and `CreateMergePatch` of evanphx/json-patch.
"""

from podkeeper.rules.patch.value import MAX_DEPTH, Json, JsonObject, check_depth, check_levels, object_of, same


def apply(original: Json, patch: Json) -> JsonObject:
    check_depth(patch, "the patch")
    return _merged(object_of(original, "the original"), object_of(patch, "the patch"))


def diff(original: Json, modified: Json) -> JsonObject:
    """Return the patch that turns the original into the modified object."""
    return _diff(object_of(original, "the original"), object_of(modified, "the modified object"), MAX_DEPTH)


def _merged(original: JsonObject, patch: JsonObject) -> JsonObject:
    if not patch:
        return original
    result = dict(original)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            current = result.get(key)
            result[key] = _merged(current if isinstance(current, dict) else {}, value)
        else:
            result[key] = value
    return result


def _diff(original: JsonObject, modified: JsonObject, levels: int) -> JsonObject:
    check_levels(levels)
    patch: JsonObject = {}
    for key, new in modified.items():
        old = original.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            if old is not new and (inner := _diff(old, new, levels - 1)):
                patch[key] = inner
        elif key not in original or not same(old, new):
            patch[key] = new
    for key in original:
        if key not in modified:
            patch[key] = None
    return patch
