"""What this machine gives to the user who plays the scenarios: some need more than an ordinary one has."""

import os

import pytest

from podkeeper.runtimes.process.keeper.idmap import HELP, NO_IDS, subordinate_ids
from tests.volumes.volume_house import WHY_NOT

MAY_MOUNT = not WHY_NOT
HAS_OTHER_USERS = os.geteuid() == 0 or subordinate_ids() != (NO_IDS, NO_IDS)

needs_mounts = pytest.mark.skipif(not MAY_MOUNT, reason=WHY_NOT)
without_mounts = pytest.mark.skipif(MAY_MOUNT, reason="we may mount here, and the kernel keeps sizes")
needs_other_users = pytest.mark.skipif(not HAS_OTHER_USERS, reason=f"there are no other users to be: {HELP}")
without_other_users = pytest.mark.skipif(HAS_OTHER_USERS, reason="there are other users to be")
