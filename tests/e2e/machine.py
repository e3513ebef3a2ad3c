"""Skip markers for tests that need mounts or other users, which ordinary users may lack."""

import os

import pytest

from podkeeper.linux.idmap import HELP, NO_IDS, subordinate_ids
from tests.volumes.harness import WHY_NOT

MAY_MOUNT = not WHY_NOT
HAS_OTHER_USERS = os.geteuid() == 0 or subordinate_ids() != (NO_IDS, NO_IDS)

needs_mounts = pytest.mark.skipif(not MAY_MOUNT, reason=WHY_NOT)
without_mounts = pytest.mark.skipif(MAY_MOUNT, reason="mounts are allowed here, so the kernel enforces sizes")
needs_other_users = pytest.mark.skipif(not HAS_OTHER_USERS, reason=f"there are no subordinate ids: {HELP}")
without_other_users = pytest.mark.skipif(HAS_OTHER_USERS, reason="there are subordinate ids")
