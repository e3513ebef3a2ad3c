"""Attacks by manifests: small files that stall the agent or never end. Each took seconds to minutes before the fix."""

import asyncio

import pytest
from aiohttp import web

from podkeeper.model.errors import NotConfigurable
from podkeeper.model.k8s.core import Container, EnvVar, Pod
from podkeeper.model.manifest import read_documents
from podkeeper.rules.container.downward import PodContext
from podkeeper.rules.container.environment import invocation_of
from podkeeper.rules.validate.pod import validate_pod
from podkeeper.sources.http_fetch import FetchFailed, HttpFetcher
from podkeeper.testing.build import container, pod
from tests.sources.web_server import serving


def test_a_repeated_key_in_a_large_object_is_found_in_one_pass() -> None:
    """Algorithmic complexity (the class of CVE-2019-11253, the "billion laughs" of Kubernetes)."""
    keys = ", ".join(f'"{number}": 0' for number in range(40_000))
    read = read_documents(f'{{{keys}, "39999": 1}}', "big.json")
    assert [problem.message for problem in read.problems] == ['Duplicate value: key "39999" already set in map']


def test_variables_that_double_are_refused() -> None:
    """The class of CVE-2019-11253: 22 variables, each of which contains the one before twice."""
    env = [EnvVar(name="A0", value="x" * 500)]
    env += [EnvVar(name=f"A{number}", value=f"$(A{number - 1})" * 2) for number in range(1, 60)]
    with pytest.raises(NotConfigurable, match="cannot expand variable A9"):
        invocation_of(Container(name="c", env=tuple(env)), PodContext(pod=Pod()), {})


@pytest.mark.parametrize("uid", ["../../../etc", "a/b", "..", "x" * 500, "a\0b"])
def test_a_uid_that_is_no_file_name_is_refused(uid: str) -> None:
    """Path traversal (CWE-22): the UID is part of the paths of volumes, logs and cgroups."""
    problems = validate_pod(pod("web", container(), uid=uid))
    assert [problem.field for problem in problems] == ["metadata.uid"]


# ---- Manifests from a URL ----


def redirected(location: str, *, times: int = 1) -> tuple[list[dict[str, str]], str]:
    """Fetch from a server that redirects to a path of itself, or to another server. Return the headers seen last."""
    seen: list[dict[str, str]] = []

    async def target(request: web.Request) -> web.Response:
        seen.append(dict(request.headers))
        return web.Response(text="kind: Pod")

    async def scenario() -> str:
        async with serving(target) as other:
            count = 0

            async def redirect(request: web.Request) -> web.Response:
                nonlocal count
                count += 1
                if count > times:
                    return await target(request)
                return web.Response(status=302, headers={"Location": location.replace("OTHER", other)})

            async with serving(redirect) as url:
                fetcher = HttpFetcher(url.replace("http://", "http://node:hush@"), {"X-Token": ("secret",)})
                async with fetcher:
                    try:
                        found = await fetcher.fetch("")
                    except FetchFailed as error:
                        return str(error)
            assert found is not None
            return found.body.decode()

    return seen, asyncio.run(scenario())


def test_no_other_server_receives_the_configured_headers() -> None:
    """Credentials sent to another host (the class of CVE-2022-0155 and CVE-2018-1000007)."""
    (headers,), body = redirected("OTHER")
    assert body == "kind: Pod"
    assert not {"X-Token", "Authorization"} & headers.keys()


@pytest.mark.parametrize("location", ["/elsewhere", "elsewhere"])
def test_a_redirect_to_the_same_server_keeps_them(location: str) -> None:
    (headers,), _ = redirected(location)
    assert headers["X-Token"] == "secret"
    assert headers["Authorization"].startswith("Basic ")


REFUSED = {
    "file:///etc/passwd": "redirected to file:///etc/passwd, expected http or https",
    "ftp://localhost/": "redirected to ftp://localhost/, expected http or https",
    "/again": "more than 10 redirects",
}


@pytest.mark.parametrize("location, message", REFUSED.items())
def test_a_bad_redirect_is_refused(location: str, message: str) -> None:
    seen, text = redirected(location, times=100)
    assert (seen, text) == ([], f"cannot fetch the manifest: {message}")
