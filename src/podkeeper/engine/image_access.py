"""The book of pulls: who has shown that he may use which image of the node.

    begin --noted, durable--> the pull --pulled--> a record per image --must_pull--> may this pod use it as it is?
                                  `--failed, nothing noted any more

In: what is about to be pulled, what was, and with which credentials. Out: whether a pod must show the registry its own
credentials before it may use an image that is there. What is decided is in `rules.image_access`. Both notes outlive the
agent; one that a crash left behind makes the next pod show its credentials, which does no harm. The Go ancestor is
pkg/kubelet/images/pullmanager.
"""

import logging
from collections import Counter
from collections.abc import Collection, Sequence

import msgspec

from podkeeper.engine.notebook import Notebook
from podkeeper.model.errors import UNDECODABLE
from podkeeper.ports.clock import Clock
from podkeeper.rules.image_access import Access, PulledImage, Verification, access_by, must_pull, with_access
from podkeeper.rules.keyring import Credentials

log = logging.getLogger(__name__)


class PullBook:
    """Knows of all pulls of this agent and its former lives."""

    def __init__(self, *, begun: Notebook, pulled: Notebook, clock: Clock, verification: Verification) -> None:
        self._verification = verification
        self._clock = clock
        self._begun_notes = begun
        self._pulled_notes = pulled
        self._begun = Counter(dict.fromkeys(list(begun.old_keys()), 0))  # by reference: how many go on now
        self._pulled: dict[str, PulledImage] = {}
        self._changed_at: dict[str, float] = {}
        for image_id in list(pulled.old_keys()):
            record = _read(pulled.take(image_id))
            # One that cannot be read still says that the image is not from before us.
            self._pulled[image_id] = record or PulledImage(image_id)

    async def begin(self, reference: str) -> None:
        """Note, durably, that an image is about to be pulled."""
        if reference not in self._begun:
            self._begun_notes.write(reference, b"")
        self._begun[reference] += 1
        await self._begun_notes.settle(reference)

    def pulled(self, reference: str, image_id: str, credentials: Credentials | None) -> None:
        """An image was pulled, with these credentials or without."""
        self._learn(reference, image_id, access_by(credentials))

    def ended(self, reference: str, *, surely: bool) -> None:
        """A pull goes on no more; not `surely`: the runtime may yet complete it, and the note stays."""
        self._begun[reference] -= 1
        if surely and self._begun[reference] <= 0:
            del self._begun[reference]
            self._begun_notes.drop(reference)

    def must_pull(self, reference: str, image_id: str, offered: Sequence[Credentials]) -> bool:
        """Whether a pod with these credentials must show them to the registry before it may use an image."""
        decision = must_pull(
            reference,
            self._pulled.get(image_id),
            begun=reference in self._begun,
            offered=offered,
            verification=self._verification,
        )
        if decision.learned is not None:
            self._learn(reference, image_id, Access(proofs=(decision.learned,)))
        return decision.pull

    def keep_only(self, image_ids: Collection[str], listed_at: float) -> None:
        """Forget the images that are gone: not among those listed, and not pulled since."""
        for image_id in self._pulled.keys() - set(image_ids):
            if self._changed_at.get(image_id, listed_at - 1) < listed_at:
                del self._pulled[image_id]
                self._changed_at.pop(image_id, None)
                self._pulled_notes.drop(image_id)

    def _learn(self, reference: str, image_id: str, access: Access) -> None:
        before = self._pulled.get(image_id)
        after = with_access(before or PulledImage(image_id), reference, access)
        self._changed_at[image_id] = self._clock.monotonic()
        if after is not before:
            self._pulled[image_id] = after
            self._pulled_notes.write(image_id, msgspec.json.encode(after))


def _read(note: bytes | None) -> PulledImage | None:
    try:
        return None if note is None else msgspec.json.decode(note, type=PulledImage)
    except UNDECODABLE:
        log.warning("a note of an earlier pull cannot be read: whoever uses its image shows his credentials anew")
        return None
