"""Images of a CRI runtime: find, pull, remove.

Credentials are tried in the order of the keyring, until one works. Errors have the runtime's message and the kubelet's
reason.
"""

from collections.abc import Sequence

from podkeeper.model.errors import ImagePullFailed, RuntimeRefused
from podkeeper.model.runtime import ImageRecord
from podkeeper.rules.images.keyring import Credentials, credentials_for
from podkeeper.runtimes.cri.calls import CriCalls
from podkeeper.runtimes.cri.errors import pull_failure
from podkeeper.runtimes.cri.records import image_record
from podkeeper.runtimes.cri.schema import cri
from podkeeper.runtimes.cri.transport import ObjectNotFound


class CriImages:
    def __init__(self, calls: CriCalls) -> None:
        self._calls = calls

    async def image(self, reference: str) -> ImageRecord | None:
        """Return the image of a name, ID or digest. None if the node does not have it."""
        try:
            found = await self._calls.image(reference)
        except ObjectNotFound:
            return None
        return None if found is None else image_record(found)

    async def list_images(self) -> Sequence[ImageRecord]:
        return tuple(map(image_record, await self._calls.images()))

    async def pull_image(self, reference: str, secrets: Sequence[str] = ()) -> ImageRecord:
        """Pull an image. Raises ImagePullFailed."""
        pulled = await self._pull(reference, secrets)
        for name in (pulled, reference):
            if name and (record := await self.image(name)) is not None:
                return record
        raise ImagePullFailed(f'image "{reference}" was pulled, but the runtime does not have it')

    async def remove_image(self, reference: str) -> None:
        """Remove an image with all its names. Unknown images are ignored."""
        await self._calls.remove_image(reference)

    async def _pull(self, reference: str, secrets: Sequence[str]) -> str:
        failures: list[RuntimeRefused] = []
        for credentials in credentials_for(reference, secrets) or (None,):
            try:
                return await self._calls.pull_image(reference, _auth(credentials))
            # Only a refusal tries the next credentials. If the runtime does not answer, the pull may still take effect.
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
