"""Scripts of static pods: manifests and mirror pods.

Manifests are written, changed and removed, and mirror pods are deleted.

A changed manifest is another pod with the same name. The same manifest at the same place always is the same pod, with
the same UID, even after it was removed in between.
"""

from msgspec.structs import replace

from podkeeper.model.k8s.core import ContainerPort, Pod
from podkeeper.testing.sim.actions import Delete, EndContainer, KillSandbox, RemoveManifest, WriteManifest, static_name
from podkeeper.testing.sim.pod_scripts import ScriptContext, Timed
from podkeeper.testing.sim.pods import Draw, plain_pod, scripted_container, server_container


def static_file(ctx: ScriptContext) -> Timed:
    """A static pod from a file."""
    return _static(ctx, web=False)


def static_web(ctx: ScriptContext) -> Timed:
    """A static pod from a web server."""
    return _static(ctx, web=True)


def mirrors(ctx: ScriptContext) -> Timed:
    """A static pod whose mirror pod is deleted, gracefully or by force, maybe while the pod itself changes."""
    draw, name = ctx.draw, static_name(ctx.name)
    first = _manifest(draw, ctx.name)
    actions: Timed = [(0.0, WriteManifest(ctx.kind, first))]
    for _ in range(draw.one_of(1, 2, 3)):
        at = ctx.random_time()
        actions.append((at, Delete(ctx.kind, name, draw.one_of(None, 0, 0, 5))))
        if draw.chance(0.3):
            actions.append(
                (at + draw.seconds(0, 2), WriteManifest(ctx.kind, _changed(draw, first, "while its mirror goes")))
            )
    return [*actions, (ctx.lifetime, RemoveManifest(ctx.kind, ctx.name))]


def _static(ctx: ScriptContext, *, web: bool) -> Timed:
    """Write a manifest, change it in several ways, and finally remove it."""
    draw = ctx.draw
    here = _manifest(draw, ctx.name)
    actions: Timed = [(0.0, WriteManifest(ctx.kind, here, web))]
    at = 0.0
    for number in range(draw.one_of(1, 1, 2, 3)):
        at += draw.seconds(5, ctx.lifetime / 2)
        match draw.one_of("change", "change", "again", "flip", "accident"):
            case "change":
                here = _changed(draw, here, f"change {number}")
                actions.append((at, WriteManifest(ctx.kind, here, web)))
            case "again":
                actions.append((at, RemoveManifest(ctx.kind, ctx.name, web)))
                at += draw.one_of(0.05, 1.0, 5.0, 40.0)
                actions.append((at, WriteManifest(ctx.kind, here, web)))
            case "flip":
                other = _changed(draw, here, f"flip {number}")
                for _ in range(draw.one_of(1, 1, 2)):  # twice: the other pod comes back, too, maybe while it terminates
                    actions.append((at, WriteManifest(ctx.kind, other, web)))
                    at += draw.one_of(0.05, 0.5, 3.0, 12.0)
                    actions.append((at, WriteManifest(ctx.kind, here, web)))
                    at += draw.one_of(0.05, 0.5, 3.0, 12.0)
            case "accident":
                name = static_name(ctx.name)
                ends = EndContainer(ctx.kind, name, "app", draw.one_of(0, 1), "")
                actions.append((at, ends if draw.chance(0.5) else KillSandbox(ctx.kind, name)))
    return [*actions, (max(at + 10, ctx.lifetime), RemoveManifest(ctx.kind, ctx.name, web))]


def _manifest(draw: Draw, name: str) -> Pod:
    app = server_container(draw)
    if draw.chance(0.3):  # a host port, for which two pods would conflict
        app = app.with_spec(ports=(ContainerPort(container_port=80, host_port=20_000 + int(name.rpartition("-")[2])),))
    inits = [scripted_container(draw, "init", 5, after_seconds=draw.seconds(0, 5))] if draw.chance(0.2) else []
    return plain_pod(draw, name, app, inits=inits, grace=draw.one_of(1, 5, 10, 30))


def _changed(draw: Draw, pod: Pod, how: str) -> Pod:
    """Return another manifest with the same name: another image, or only another label."""
    if draw.chance(0.3):
        return replace(pod, metadata=replace(pod.metadata, labels={"changed": how.replace(" ", "-")}))
    first, *rest = pod.spec.containers
    image = f"{first.name}:{how.replace(' ', '-')}"
    return replace(pod, spec=replace(pod.spec, containers=(replace(first, image=image), *rest)))
