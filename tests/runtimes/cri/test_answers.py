"""Commands, images and health: how what a runtime says of them comes out."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import grpc
import pytest

from podkeeper.model.errors import ImagePullFailed
from podkeeper.model.probing import Exited, NotRun, TimedOut
from podkeeper.runtimes.cri.refusals import says_timed_out
from podkeeper.runtimes.cri.schema import cri
from tests.runtimes.cri.fake_server import FakeCri, Refuse
from tests.runtimes.cri.scenes import Scene, with_fake

UNKNOWN = grpc.StatusCode.UNKNOWN


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 60))


SAID = {  # an answer to a command -> whether it says that the command was cut off
    "CRI-O's way": (cri.ExecSyncResponse(exit_code=-1, stderr=b"command timed out"), True),
    "a command may say so itself": (cri.ExecSyncResponse(exit_code=1, stderr=b"command timed out"), False),
    "an exit code that none has": (cri.ExecSyncResponse(exit_code=-1), False),
    "all is well": (cri.ExecSyncResponse(stdout=b"command timed out"), False),
}


@pytest.mark.parametrize("answer, expected", SAID.values(), ids=SAID.keys())
def test_a_command_that_was_cut_off_may_be_told_in_an_answer(answer: cri.ExecSyncResponse, expected: bool) -> None:
    assert says_timed_out(answer) is expected


@pytest.mark.parametrize(
    "words",
    [
        "failed to exec in container: timeout 1s exceeded: context deadline exceeded",
        "command error: command timed out, output: , error: exec command timed out",
    ],
)
@pytest.mark.parametrize("code", [UNKNOWN, grpc.StatusCode.DEADLINE_EXCEEDED])
def test_a_command_cut_off_by_the_runtime_has_timed_out(code: grpc.StatusCode, words: str) -> None:
    async def scenario() -> None:
        fake = FakeCri()
        async with with_fake(fake) as runtime:
            fake.next("ExecSync", Refuse(code, words))
            end = await runtime.exec_sync(await Scene(runtime).start(), ["sleep", "9"], 1)
            assert end == TimedOut('command timed out: "sleep 9" timed out after 1s')

    run(scenario())


def test_a_command_tells_what_it_said_and_one_that_cannot_run_says_so() -> None:
    async def scenario() -> None:
        fake = FakeCri()
        async with with_fake(fake) as runtime:
            container_id = await Scene(runtime).start()
            assert await runtime.exec_sync(container_id, ["x"], 1) == Exited(3, b"out\nerr\n")
            fake.next("ExecSync", Refuse(UNKNOWN, "no such file"))
            assert await runtime.exec_sync(container_id, ["x"], 1) == NotRun(
                "rpc error: code = Unknown desc = no such file"
            )

    run(scenario())


PULLS = {
    "unknown trouble is told bare": (
        Refuse(UNKNOWN, 'failed to pull and unpack image "r/x:1": no such host'),
        ("ErrImagePull", 'failed to pull and unpack image "r/x:1": no such host'),
    ),
    "what is not there keeps its code": (
        Refuse(grpc.StatusCode.NOT_FOUND, "not found"),
        ("ErrImagePull", "rpc error: code = NotFound desc = not found"),
    ),
    "a registry that is down has a reason of its own": (
        Refuse(UNKNOWN, "RegistryUnavailable: 503"),
        ("RegistryUnavailable", "RegistryUnavailable: 503"),
    ),
    "so has a signature that is wrong": (
        Refuse(UNKNOWN, "SignatureValidationFailed: no key"),
        ("SignatureValidationFailed", "SignatureValidationFailed: no key"),
    ),
}


@pytest.mark.parametrize("refuse, expected", PULLS.values(), ids=PULLS.keys())
def test_why_a_pull_failed(refuse: Refuse, expected: tuple[str, str]) -> None:
    async def scenario() -> None:
        fake = FakeCri()
        async with with_fake(fake) as runtime:
            fake.next("PullImage", refuse)
            with pytest.raises(ImagePullFailed) as caught:
                await runtime.pull_image("r/x:1")
            assert (caught.value.reason, str(caught.value)) == expected

    run(scenario())


def test_credentials_are_tried_until_one_works() -> None:
    async def scenario() -> None:
        fake = FakeCri()
        async with with_fake(fake) as runtime:
            config = '{"auths": {"r.example": {"username": "%s", "password": "p"}}}'
            fake.next("PullImage", Refuse(UNKNOWN, "401"))
            pulled = await runtime.pull_image("r.example/x:1", (config % "first", config % "second"))
            shown = [asked.auth.username for name, asked in fake.calls if name == "PullImage"]
            assert (pulled.id, shown) == ("sha256:1", ["first", "second"])

    run(scenario())


def test_all_failures_of_all_credentials_are_told() -> None:
    async def scenario() -> None:
        fake = FakeCri()
        async with with_fake(fake) as runtime:
            config = '{"auths": {"r.example": {"username": "%s", "password": "p"}}}'
            fake.next("PullImage", Refuse(UNKNOWN, "401 one"), Refuse(UNKNOWN, "401 two"))
            with pytest.raises(ImagePullFailed, match=r"^\[401 one, 401 two\]$"):
                await runtime.pull_image("r.example/x:1", (config % "first", config % "second"))

    run(scenario())


def test_a_network_that_is_not_ready_is_told_as_the_reference_does() -> None:
    async def scenario() -> None:
        fake = FakeCri()
        fake.conditions["NetworkReady"] = False
        async with with_fake(fake) as runtime:
            health = await runtime.health()
            assert (health.runtime_ready, health.network_ready) == (True, False)
            assert health.message == "container runtime network not ready: NetworkReady=false reason:Broken message:so"

    run(scenario())
