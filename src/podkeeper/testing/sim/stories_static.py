"""The stories of static pods: manifests that are written, changed and taken away, and the mirrors of their pods.

A manifest that changes is another pod of the same name; the same manifest at the same place is the same pod, with the
same UID, however often it goes and comes back.
"""

from msgspec.structs import replace

from podkeeper.model.k8s.core import ContainerPort, Pod
from podkeeper.testing.sim.deeds import Delete, EndContainer, Erase, KillSandbox, Write, static_name
from podkeeper.testing.sim.pods import Draw, part, plain_pod, server_part
from podkeeper.testing.sim.stories import Setting, Timed


def static_file(it: Setting) -> Timed:
    """A static pod from a file."""
    return _static(it, web=False)


def static_web(it: Setting) -> Timed:
    """A static pod from a web server."""
    return _static(it, web=True)


def mirrors(it: Setting) -> Timed:
    """A static pod whose mirror somebody deletes, gracefully or by force, perhaps while the pod itself changes."""
    draw, name = it.draw, static_name(it.name)
    first = _manifest(draw, it.name)
    deeds: Timed = [(0.0, Write(it.kind, first))]
    for _ in range(draw.one_of(1, 2, 3)):
        at = it.some_time()
        deeds.append((at, Delete(it.kind, name, draw.one_of(None, 0, 0, 5))))
        if draw.chance(0.3):
            deeds.append((at + draw.seconds(0, 2), Write(it.kind, _changed(draw, first, "while its mirror goes"))))
    return [*deeds, (it.life, Erase(it.kind, it.name))]


def _static(it: Setting, *, web: bool) -> Timed:
    """Written, then changed in all ways there are, and taken away in the end."""
    draw = it.draw
    here = _manifest(draw, it.name)
    deeds: Timed = [(0.0, Write(it.kind, here, web))]
    at = 0.0
    for number in range(draw.one_of(1, 1, 2, 3)):
        at += draw.seconds(5, it.life / 2)
        match draw.one_of("change", "change", "again", "flip", "accident"):
            case "change":
                here = _changed(draw, here, f"change {number}")
                deeds.append((at, Write(it.kind, here, web)))
            case "again":
                deeds.append((at, Erase(it.kind, it.name, web)))
                at += draw.one_of(0.05, 1.0, 5.0, 40.0)
                deeds.append((at, Write(it.kind, here, web)))
            case "flip":
                other = _changed(draw, here, f"flip {number}")
                for _ in range(draw.one_of(1, 1, 2)):  # twice: also the other pod comes back, perhaps while it ends
                    deeds.append((at, Write(it.kind, other, web)))
                    at += draw.one_of(0.05, 0.5, 3.0, 12.0)
                    deeds.append((at, Write(it.kind, here, web)))
                    at += draw.one_of(0.05, 0.5, 3.0, 12.0)
            case "accident":
                name = static_name(it.name)
                ends = EndContainer(it.kind, name, "app", draw.one_of(0, 1), "")
                deeds.append((at, ends if draw.chance(0.5) else KillSandbox(it.kind, name)))
    return [*deeds, (max(at + 10, it.life), Erase(it.kind, it.name, web))]


def _manifest(draw: Draw, name: str) -> Pod:
    app = server_part(draw)
    if draw.chance(0.3):  # a port of the node: two of them would fight for it
        app = app.where(ports=(ContainerPort(container_port=80, host_port=20_000 + int(name.rpartition("-")[2])),))
    inits = [part(draw, "init", 5, after_seconds=draw.seconds(0, 5))] if draw.chance(0.2) else []
    return plain_pod(draw, name, app, inits=inits, grace=draw.one_of(1, 5, 10, 30))


def _changed(draw: Draw, pod: Pod, how: str) -> Pod:
    """Another manifest of the same name: another image, or only another label."""
    if draw.chance(0.3):
        return replace(pod, metadata=replace(pod.metadata, labels={"changed": how.replace(" ", "-")}))
    first, *rest = pod.spec.containers
    image = f"{first.name}:{how.replace(' ', '-')}"
    return replace(pod, spec=replace(pod.spec, containers=(replace(first, image=image), *rest)))
