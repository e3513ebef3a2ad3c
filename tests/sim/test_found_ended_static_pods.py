"""Static pods that have ended and whose manifest is removed and added again before the API has answered."""

import asyncio

import pytest

from podkeeper.model.runtime import bare_container_id
from podkeeper.runtimes.fake import Behaviour
from podkeeper.testing.sim.mischief_around import UnreadableSources
from tests.sim.stories import Story, container, pod, tell

PLACE = "/etc/podkeeper/job.yaml"


def shown_ids(it: Story) -> list[str]:
    """The ids of the containers that the mirror shows."""
    mirror = it.in_api("job-n1")
    statuses = () if mirror is None else mirror.status.container_statuses or ()
    return [bare_container_id(each.container_id or "") for each in statuses]


@pytest.mark.parametrize("api_comes_first", [True, False], ids=["it had a mirror", "it had no mirror"])
@pytest.mark.parametrize("away_seconds", [0.05, 10.0])
@pytest.mark.parametrize(("policy", "code", "phase"), [("Never", 1, "Failed"), ("OnFailure", 0, "Succeeded")])
def test_an_ended_static_pod_that_is_removed_and_added_again_runs_again_without_the_api(
    policy: str, code: int, phase: str, away_seconds: float, api_comes_first: bool
) -> None:
    """Its published phase stayed terminal, so housekeeping dropped the request, and the pod never ran again (I20)."""

    async def story(it: Story) -> None:
        job = pod("job", container(), policy=policy, app=Behaviour(after_seconds=5, exit_code=code))
        if api_comes_first:
            it.write(PLACE, job)
            await it.until(lambda: it.in_api("job-n1") is not None and it.phase("job-n1") == phase, within=10)
        it.api.go_down()
        it.world.troubles.begin(it.world.now(), "api-down")
        await it.restart_agent()
        uid = it.write(PLACE, job)
        await asyncio.sleep(20)
        assert len(it.lives(uid)) == 1
        assert not it.runs(uid)
        it.world.files.erase(PLACE)
        await asyncio.sleep(away_seconds)
        it.write(PLACE, job)
        await it.until(lambda: it.runs(uid), within=3)
        await asyncio.sleep(20)
        assert len(it.lives(uid)) == 2, "it ran once more"
        it.api.come_up()
        await it.until(lambda: shown_ids(it) == [it.lives(uid)[-1].id], within=70)
        assert it.phase("job-n1") == phase
        await asyncio.sleep(100)
        assert len(it.lives(uid)) == 2

    tell(story)


def test_an_ended_static_pod_whose_manifest_stays_does_not_run_again_without_the_api() -> None:
    async def story(it: Story) -> None:
        it.api.go_down()
        it.world.troubles.begin(0.0, "api-down")
        await it.restart_agent()
        uid = it.write(PLACE, pod("job", container(), policy="Never", app=Behaviour(after_seconds=5)))
        await asyncio.sleep(100)
        assert len(it.lives(uid)) == 1
        it.api.come_up()
        await asyncio.sleep(100)
        assert len(it.lives(uid)) == 1

    tell(story)


def test_an_ended_static_pod_that_is_added_again_has_a_status_although_another_source_is_missing() -> None:
    """The mirror of the former run refused each status of the new one, so the pod ran without a status."""

    async def story(it: Story) -> None:
        job = pod("job", container(), policy="Never", app=Behaviour(after_seconds=30))
        uid = it.write(PLACE, job)
        await it.until(lambda: it.in_api("job-n1") is not None and it.phase("job-n1") == "Succeeded", within=40)
        it.world.crash()
        UnreadableSources(files=False, web=True, seconds=100).play(it.world)
        await asyncio.sleep(10)
        it.world.files.erase(PLACE)
        await asyncio.sleep(5)
        it.write(PLACE, job)
        await it.until(lambda: it.runs(uid), within=3)
        await it.until(lambda: it.is_ready("job-n1"), within=5)
        await it.until(lambda: it.phase("job-n1") == "Succeeded", within=40)
        assert shown_ids(it) == [it.lives(uid)[-1].id]

    tell(story)


def test_the_deadline_of_a_static_pod_that_is_added_again_counts_from_its_new_start() -> None:
    """When the API answered, the pod took the start time of its former run from the mirror, and was killed."""

    async def story(it: Story) -> None:
        life = Behaviour(after_seconds=50, exit_code=0)
        job = pod("job", container(), policy="Never", deadline=60, app=life)
        uid = it.write(PLACE, job)
        await it.until(lambda: it.in_api("job-n1") is not None and it.phase("job-n1") == "Succeeded", within=60)
        it.api.go_down()
        it.world.troubles.begin(it.world.now(), "api-down")
        await it.restart_agent()
        await asyncio.sleep(5)
        it.world.files.erase(PLACE)
        await asyncio.sleep(5)
        it.write(PLACE, job)
        await it.until(lambda: it.runs(uid), within=3)
        it.api.come_up()
        await asyncio.sleep(70)
        assert [life.exit_code for life in it.lives(uid)] == [0, 0]
        assert it.phase("job-n1") == "Succeeded"

    tell(story)
