"""Images of the node, through CRI: asked for, fetched, removed.

Credentials are tried one after the other, as the keyring orders them; the first that works is enough. What went wrong
is told in the runtime's words, under the reference's reasons.
"""

from collections.abc import Sequence

from podkeeper.model.errors import ImagePullFailed, RuntimeRefused
from podkeeper.model.runtime import ImageRecord
from podkeeper.rules.keyring import Credentials, credentials_for
from podkeeper.runtimes.cri.calls import Calls
from podkeeper.runtimes.cri.records import image_record
from podkeeper.runtimes.cri.refusals import pull_failure
from podkeeper.runtimes.cri.schema import cri
from podkeeper.runtimes.cri.transport import NotThere


class Images:
    """What containers are made from."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def image(self, reference: str) -> ImageRecord | None:
        """The image under this name, id or digest, if the node has it."""
        try:
            found = await self._calls.image(reference)
        except NotThere:
            return None
        return None if found is None else image_record(found)

    async def list_images(self) -> Sequence[ImageRecord]:
        """All images of the node."""
        return tuple(map(image_record, await self._calls.images()))

    async def pull_image(self, reference: str, secrets: Sequence[str] = ()) -> ImageRecord:
        """Fetch an image. Raises ImagePullFailed."""
        called = await self._fetched(reference, secrets)
        for name in (called, reference):
            if name and (record := await self.image(name)) is not None:
                return record
        raise ImagePullFailed(f'image "{reference}" was pulled, and is not there')

    async def remove_image(self, reference: str) -> None:
        """Remove an image, under all its names; unknown is removed."""
        await self._calls.remove_image(reference)

    async def _fetched(self, reference: str, secrets: Sequence[str]) -> str:
        failures: list[RuntimeRefused] = []
        for credentials in credentials_for(reference, secrets) or (None,):
            try:
                return await self._calls.pull_image(reference, _auth(credentials))
            except RuntimeRefused as error:
                failures.append(error)
        raise pull_failure(failures) from failures[-1]


def _auth(credentials: Credentials | None) -> cri.AuthConfig | None:
    if credentials is None:
        return None
    return cri.AuthConfig(
        username=credentials.username,
        password=credentials.password,
        identity_token=credentials.identity_token,
        registry_token=credentials.registry_token,
    )
