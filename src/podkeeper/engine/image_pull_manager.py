"""Image pull records: which credentials gave access to which image.

    record_pull_intent (durable) -> pull -> record_image_pulled -> must_attempt_image_pull
                                      `--failed--> the intent is deleted

In: pulls, with the credentials that were used. Out: whether a pod must present its credentials to the registry before
it may use a present image. `rules.images.pull_access` decides. Intents and pulled records survive a restart. An intent
that a crash left behind only makes the next pod present its credentials.
Kubelet counterpart: pkg/kubelet/images/pullmanager.
"""

import logging
from collections import Counter
from collections.abc import Collection, Sequence

import msgspec

from podkeeper.engine.checkpoints import Checkpoints
from podkeeper.model.errors import UNDECODABLE
from podkeeper.ports.clock import Clock
from podkeeper.rules.images.keyring import Credentials
from podkeeper.rules.images.pull_access import Access, PulledImage, Verification, access_by, must_pull, with_access

log = logging.getLogger(__name__)


class ImagePullManager:
    def __init__(self, *, intents: Checkpoints, pulled: Checkpoints, clock: Clock, verification: Verification) -> None:
        self._verification = verification
        self._clock = clock
        self._intent_checkpoints = intents
        self._pulled_checkpoints = pulled
        self._intents = Counter(dict.fromkeys(list(intents.old_keys()), 0))  # reference -> pulls in progress
        self._pulled: dict[str, PulledImage] = {}
        self._changed_at: dict[str, float] = {}
        for image_id in list(pulled.old_keys()):
            record = _decode(pulled.take(image_id))
            # Even an unreadable record shows that this agent pulled the image: it is not preloaded.
            self._pulled[image_id] = record or PulledImage(image_id)

    async def record_pull_intent(self, reference: str) -> None:
        """Record that a pull begins. Return when the record is durable."""
        if reference not in self._intents:
            self._intent_checkpoints.write(reference, b"")
        self._intents[reference] += 1
        await self._intent_checkpoints.settle(reference)

    def record_image_pulled(self, reference: str, image_id: str, credentials: Credentials | None) -> None:
        """Record that an image was pulled with these credentials, or anonymously."""
        self._add_access(reference, image_id, access_by(credentials))

    def record_pull_ended(self, reference: str, *, certain: bool) -> None:
        """Delete the intent of an ended pull, unless the runtime may still complete the pull (not `certain`)."""
        self._intents[reference] -= 1
        # Without certainty the image may still appear. The kept intent makes the next pod present its credentials.
        if certain and self._intents[reference] <= 0:
            del self._intents[reference]
            self._intent_checkpoints.drop(reference)

    def must_attempt_image_pull(self, reference: str, image_id: str, offered: Sequence[Credentials]) -> bool:
        """Return whether a pod must present these credentials to the registry before it may use the image."""
        decision = must_pull(
            reference,
            self._pulled.get(image_id),
            begun=reference in self._intents,
            offered=offered,
            verification=self._verification,
        )
        # Another secret with the same credentials, or the same secret with new content. Record it as a further proof.
        if decision.learned is not None:
            self._add_access(reference, image_id, Access(proofs=(decision.learned,)))
        return decision.pull

    def prune_unknown_records(self, image_ids: Collection[str], listed_at: float) -> None:
        """Delete the records of images that are not listed and have not been pulled since."""
        for image_id in self._pulled.keys() - set(image_ids):
            # An image that was pulled after the list began may be missing from it.
            if self._changed_at.get(image_id, listed_at - 1) < listed_at:
                del self._pulled[image_id]
                self._changed_at.pop(image_id, None)
                self._pulled_checkpoints.drop(image_id)

    def _add_access(self, reference: str, image_id: str, access: Access) -> None:
        before = self._pulled.get(image_id)
        after = with_access(before or PulledImage(image_id), reference, access)
        self._changed_at[image_id] = self._clock.monotonic()
        if after is not before:
            self._pulled[image_id] = after
            self._pulled_checkpoints.write(image_id, msgspec.json.encode(after))


def _decode(checkpoint: bytes | None) -> PulledImage | None:
    try:
        return None if checkpoint is None else msgspec.json.decode(checkpoint, type=PulledImage)
    except UNDECODABLE:
        log.warning("cannot read an image pull record: pods must present their credentials again to use the image")
        return None
