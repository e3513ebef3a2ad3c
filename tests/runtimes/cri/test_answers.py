"""Results of commands, images and health calls, from responses of the runtime."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import grpc
import pytest

from podkeeper.model.errors import ImagePullFailed
from podkeeper.model.probing import CommandExited, NotRun, TimedOut
from podkeeper.runtimes.cri.errors import is_timeout_response
from podkeeper.runtimes.cri.schema import cri
from tests.runtimes.cri.cri_pod import CriPod, runtime_on_fake
from tests.runtimes.cri.fake_server import FakeCri
from tests.runtimes.cri.faults import Refuse

UNKNOWN = grpc.StatusCode.UNKNOWN


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 60))


SAID = {  # response to a command -> whether it timed out
    "CRI-O's way": (cri.ExecSyncResponse(exit_code=-1, stderr=b"command timed out"), True),
    "a command can print the same message": (cri.ExecSyncResponse(exit_code=1, stderr=b"command timed out"), False),
    "an exit code that none has": (cri.ExecSyncResponse(exit_code=-1), False),
    "all is well": (cri.ExecSyncResponse(stdout=b"command timed out"), False),
}


@pytest.mark.parametrize("answer, expected", SAID.values(), ids=SAID.keys())
def test_a_timeout_may_be_reported_in_a_response(answer: cri.ExecSyncResponse, expected: bool) -> None:
    assert is_timeout_response(answer) is expected


@pytest.mark.parametrize(
    "words",
    [
        "failed to exec in container: timeout 1s exceeded: context deadline exceeded",
        "command error: command timed out, output: , error: exec command timed out",
    ],
)
@pytest.mark.parametrize("code", [UNKNOWN, grpc.StatusCode.DEADLINE_EXCEEDED])
def test_a_command_killed_by_the_runtime_timed_out(code: grpc.StatusCode, words: str) -> None:
    async def scenario() -> None:
        fake = FakeCri()
        async with runtime_on_fake(fake) as runtime:
            fake.next("ExecSync", Refuse(code, words))
            end = await runtime.exec_sync(await CriPod(runtime).start(), ["sleep", "9"], 1)
            assert end == TimedOut('command timed out: "sleep 9" timed out after 1s')

    run(scenario())


def test_a_command_returns_its_output_or_why_it_did_not_run() -> None:
    async def scenario() -> None:
        fake = FakeCri()
        async with runtime_on_fake(fake) as runtime:
            container_id = await CriPod(runtime).start()
            assert await runtime.exec_sync(container_id, ["x"], 1) == CommandExited(3, b"out\nerr\n")
            fake.next("ExecSync", Refuse(UNKNOWN, "no such file"))
            assert await runtime.exec_sync(container_id, ["x"], 1) == NotRun(
                "rpc error: code = Unknown desc = no such file"
            )

    run(scenario())


PULLS = {
    "an unknown error is unchanged": (
        Refuse(UNKNOWN, 'failed to pull and unpack image "r/x:1": no such host'),
        ("ErrImagePull", 'failed to pull and unpack image "r/x:1": no such host'),
    ),
    "a missing image keeps its code": (
        Refuse(grpc.StatusCode.NOT_FOUND, "not found"),
        ("ErrImagePull", "rpc error: code = NotFound desc = not found"),
    ),
    "an unavailable registry has its own reason": (
        Refuse(UNKNOWN, "RegistryUnavailable: 503"),
        ("RegistryUnavailable", "RegistryUnavailable: 503"),
    ),
    "an invalid signature has its own reason": (
        Refuse(UNKNOWN, "SignatureValidationFailed: no key"),
        ("SignatureValidationFailed", "SignatureValidationFailed: no key"),
    ),
}


@pytest.mark.parametrize("refuse, expected", PULLS.values(), ids=PULLS.keys())
def test_reasons_of_failed_pulls(refuse: Refuse, expected: tuple[str, str]) -> None:
    async def scenario() -> None:
        fake = FakeCri()
        async with runtime_on_fake(fake) as runtime:
            fake.next("PullImage", refuse)
            with pytest.raises(ImagePullFailed) as caught:
                await runtime.pull_image("r/x:1")
            assert (caught.value.reason, str(caught.value)) == expected

    run(scenario())


def test_credentials_are_tried_until_one_works() -> None:
    async def scenario() -> None:
        fake = FakeCri()
        async with runtime_on_fake(fake) as runtime:
            config = '{"auths": {"r.example": {"username": "%s", "password": "p"}}}'
            fake.next("PullImage", Refuse(UNKNOWN, "401"))
            pulled = await runtime.pull_image("r.example/x:1", (config % "first", config % "second"))
            shown = [request.auth.username for name, request in fake.calls if name == "PullImage"]
            assert (pulled.id, shown) == ("sha256:1", ["first", "second"])

    run(scenario())


def test_errors_of_all_credentials_are_reported() -> None:
    async def scenario() -> None:
        fake = FakeCri()
        async with runtime_on_fake(fake) as runtime:
            config = '{"auths": {"r.example": {"username": "%s", "password": "p"}}}'
            fake.next("PullImage", Refuse(UNKNOWN, "401 one"), Refuse(UNKNOWN, "401 two"))
            with pytest.raises(ImagePullFailed, match=r"^\[401 one, 401 two\]$"):
                await runtime.pull_image("r.example/x:1", (config % "first", config % "second"))

    run(scenario())


def test_the_message_of_an_unready_network_equals_the_kubelets() -> None:
    async def scenario() -> None:
        fake = FakeCri()
        fake.conditions["NetworkReady"] = False
        async with runtime_on_fake(fake) as runtime:
            health = await runtime.health()
            assert (health.runtime_ready, health.network_ready) == (True, False)
            assert health.message == "container runtime network not ready: NetworkReady=false reason:Broken message:so"

    run(scenario())
