"""The planted bugs of `tools/mutants.py`: each one a mistake somebody could make in a review-sized change."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutant:
    """One replacement in one file, and the tests that should notice first."""

    name: str
    file: str  # below src/podkeeper
    before: str
    after: str
    tests: tuple[str, ...]


ORACLE = "tests/oracle/test_replay.py"

MUTANTS = (
    Mutant(
        "grace-may-grow",
        "rules/grace.py",
        "if wish is not None and (seconds == 0 or wish < seconds):",
        "if wish is not None:",
        ("tests/rules/test_grace.py",),
    ),
    Mutant(
        "grace-under-a-second",
        "rules/grace.py",
        "seconds = max(seconds, MIN_GRACE_SECONDS)",
        "seconds = max(seconds, 0)",
        ("tests/rules/test_grace.py",),
    ),
    Mutant(
        "status-alone-is-an-update",
        "rules/merge.py",
        "return Verdict.SAME if stored.status == fresh.status else Verdict.RECONCILE",
        "return Verdict.SAME if stored.status == fresh.status else Verdict.UPDATE",
        ("tests/rules/test_merge.py",),
    ),
    Mutant(
        "source-never-ready-when-empty",
        "rules/merge.py",
        "(Op.ADD, merged.added, bool(merged.added) or ready),",
        "(Op.ADD, merged.added, bool(merged.added)),",
        ("tests/rules/test_merge.py",),
    ),
    Mutant(
        "local-annotation-overwritten",
        "rules/merge.py",
        "annotations={**(fresh.metadata.annotations or {}), **kept},",
        "annotations={**kept, **(fresh.metadata.annotations or {})},",
        ("tests/rules/test_merge.py",),
    ),
    Mutant(
        "duplicate-name-wins",
        "rules/merge.py",
        "            duplicates.append(pod)",
        "            accepted.append(pod)",
        ("tests/rules/test_merge.py",),
    ),
    Mutant(
        "kill-does-not-cancel",
        "rules/worker/passes.py",
        "return Step(waits, (*orders, Cancel()) if preempt else orders)",
        "return Step(waits, orders)",
        ("tests/rules/test_worker_step.py", "tests/rules/test_worker_laws.py"),
    ),
    Mutant(
        "pending-update-lost",
        "rules/worker/passes.py",
        "waits = replace(state, activity=replace(busy, pending=latest(busy.pending, work)))",
        "waits = replace(state, activity=replace(busy, pending=busy.pending or work))",
        ("tests/rules/test_worker_step.py", "tests/rules/test_worker_laws.py"),
    ),
    Mutant(
        "start-time-forgotten",
        "rules/worker/passes.py",
        "return replace(work, start_time=min(times, default=None))",
        "return work",
        ("tests/rules/test_worker_step.py", "tests/rules/test_worker_laws.py"),
    ),
    Mutant(
        "signals-never-fire",
        "rules/worker/passes.py",
        "return _move_on(terminated, done, at, (*signals, AT_ONCE))",
        "return _move_on(terminated, done, at, (AT_ONCE,))",
        ("tests/rules/test_worker_step.py", "tests/rules/test_worker_laws.py"),
    ),
    Mutant(
        "restart-request-lost",
        "rules/worker/passes.py",
        "terminated = Terminated(ending.cause, done, ending.restart_requested)",
        "terminated = Terminated(ending.cause, done)",
        ("tests/rules/test_worker_step.py", "tests/rules/test_worker_laws.py"),
    ),
    Mutant(
        "terminal-pod-starts-again",
        "rules/worker/step.py",
        "case Unknown() if _ended_before(update, runtime):",
        "case Unknown() if False and _ended_before(update, runtime):",
        ("tests/rules/test_worker_step.py", "tests/rules/test_worker_laws.py"),
    ),
    Mutant(
        "finished-pod-runs-again",
        "rules/restart.py",
        "                return exit_code != 0\n",
        "                return True\n",
        ("tests/rules/test_restart.py",),
    ),
    Mutant(
        "never-means-always",
        "rules/restart.py",
        "    if pod.metadata.deletion_timestamp is not None:\n        return False\n    if newest is None:",
        "    if newest is None:",
        ("tests/rules/test_restart.py",),
    ),
    Mutant(
        "success-of-some-is-success",
        "rules/phase.py",
        "    succeeded = all(\n",
        "    succeeded = any(\n",
        ("tests/rules/test_phase.py",),
    ),
    Mutant(
        "static-pod-ends-by-itself",
        "rules/phase.py",
        "if (not ended or is_static_pod(pod)) and any(",
        "if not ended and any(",
        ("tests/rules/test_phase.py",),
    ),
    Mutant(
        "backoff-without-ceiling",
        "rules/backoff.py",
        "delay = min(max(entry.delay * 2, curve.initial), curve.maximum)",
        "delay = max(entry.delay * 2, curve.initial)",
        ("tests/rules/test_backoff.py",),
    ),
    Mutant(
        "backoff-never-resets",
        "rules/backoff.py",
        "if entry is None or (event_at is not None and has_expired(entry, event_at)):",
        "if entry is None:",
        ("tests/rules/test_backoff.py",),
    ),
    Mutant(
        "death-not-told-before-removal",
        "rules/relist.py",
        "return (LifecycleEventType.CONTAINER_DIED, LifecycleEventType.CONTAINER_REMOVED)",
        "return (LifecycleEventType.CONTAINER_REMOVED,)",
        ("tests/rules/test_relist.py",),
    ),
    Mutant(
        "missed-inspection-not-healed",
        "rules/relist.py",
        "return Book(records, book.reinspect | {finding.uid}), ()",
        "return Book(records, book.reinspect), ()",
        ("tests/rules/test_relist.py",),
    ),
    Mutant(
        "young-pod-looks-orphaned",
        "rules/housekeeping.py",
        "known = {*sight.known, *sight.told_since}",
        "known = {*sight.known}",
        ("tests/rules/test_housekeeping.py",),
    ),
    Mutant(
        "mounted-directory-removed",
        "rules/housekeeping.py",
        "directories_to_remove=nobodys - with_volumes,",
        "directories_to_remove=nobodys,",
        ("tests/rules/test_housekeeping.py",),
    ),
    Mutant(
        "mirror-removal-kills-static-pod",
        "rules/dispatch.py",
        "    if couple.asked_by_mirror:\n        return on_update(couple, at)\n    return Update(type=UpdateType.KILL",
        "    return Update(type=UpdateType.KILL",
        ("tests/rules/test_dispatch.py",),
    ),
    Mutant(
        "removal-acts-before-sources-are-ready",
        "rules/dispatch.py",
        "return Update(type=UpdateType.KILL, pod=couple.pod) if all_sources_ready else None",
        "return Update(type=UpdateType.KILL, pod=couple.pod)",
        ("tests/rules/test_dispatch.py",),
    ),
    Mutant(
        "probe-threshold-off-by-one",
        "rules/probe/worker.py",
        "if streak.count < _threshold(target.probe, outcome):",
        "if streak.count <= _threshold(target.probe, outcome):",
        ("tests/rules/test_probe.py",),
    ),
    Mutant(
        "failed-liveness-keeps-probing",
        "rules/probe/worker.py",
        "next_state = OnHold(state.container_id) if decided else replace(state, streak=streak)",
        "next_state = replace(state, streak=streak)",
        ("tests/rules/test_probe.py",),
    ),
    Mutant(
        "terminal-phase-sent-while-containers-run",
        "rules/status/publish.py",
        "    if ending and could_run:\n        to_send",
        "    if False:\n        to_send",
        ("tests/rules/test_status_publish.py",),
    ),
    Mutant(
        "deleted-before-it-is-over",
        "rules/status/publish.py",
        "        and is_terminal(pod.status.phase)\n        and cached.finished",
        "        and is_terminal(pod.status.phase)",
        ("tests/rules/test_status_publish.py",),
    ),
    Mutant(
        "ended-container-revived",
        "rules/status/publish.py",
        "    if problem is not None:\n        return Refused(problem)\n",
        "",
        ("tests/rules/test_status_publish.py",),
    ),
    Mutant(
        "transition-time-always-moves",
        "rules/status/publish.py",
        "since = before.last_transition_time if before is not None and before.status == condition.status else now",
        "since = now",
        ("tests/rules/test_status_publish.py",),
    ),
    Mutant(
        "others-conditions-dropped",
        "rules/status/publish.py",
        "conditions = tuple(each for each in old.conditions or () if not is_ours(each))",
        "conditions = ()",
        ("tests/rules/test_status_publish.py",),
    ),
    Mutant(
        "changed-sandbox-kept",
        "rules/plan/compute.py",
        "    if sandbox.changed:\n        return _begin_anew",
        "    if False:\n        return _begin_anew",
        ("tests/rules/test_plan.py",),
    ),
    Mutant(
        "what-nobody-looked-at-is-taken-for-stopped",
        "engine/cache.py",
        "return None if uid in self._held and entry.at <= self._all_seen_at else entry.record",
        "return entry.record",
        ("tests/app/test_agent.py",),
    ),
    Mutant(
        "rounds-skipped-although-something-happened",
        "engine/housekeeping.py",
        "return happenings == self._happenings() and self._clock",
        "return self._clock",
        ("tests/app/test_agent.py",),
    ),
    Mutant(
        "turns-of-far-work-lost",
        "engine/loop.py",
        "        self._queue.enqueue(uid, delay_seconds)\n        self._wake_up_by",
        "        self._wake_up_by",
        ("tests/engine/test_loop.py",),
    ),
    Mutant(
        "status-sent-without-uid",
        "rules/status/publish.py",
        'return {"metadata": {"uid": api_pod.metadata.uid}, **change} if change else None',
        "return {**change} if change else None",
        ("tests/rules/test_status_publish.py",),
    ),
)
