"""The figures of a step against their definitions, on recorded groups."""

import itertools
from dataclasses import replace
from statistics import median

import msgspec
import pytest

from services.replay.buffer import Buffer
from services.replay.policies import get_policy
from services.replay.stats import WHAT_IF_FACTORS, batch_stats, reuse, reward_parts, what_if_tau
from tests.replay.played import play
from tests.replay.recording import Recording
from tests.replay.test_policies import settings

STEPS = 40


@pytest.fixture(scope="module")
def recording() -> Recording:
    return Recording()


@pytest.mark.parametrize("name", ["headroom_drift", "naive"])
def test_a_step_tells_the_ages_the_depth_and_the_scores_of_what_it_replayed(name: str, recording: Recording):
    for seen in play(settings(name, recording), get_policy(name), recording, STEPS):
        stats, rows = seen.batch.stats, {row.id: row for row in seen.before}
        ages = [seen.step - rows[id].step for id in seen.batch.replay]
        assert stats["ages"] == ages and stats["distinct_ages"] == len(set(ages))
        assert stats["scan_depth"] == (len(seen.scanned) / len(rows) if rows else None)
        assert stats["tau"] == seen.selection.tau
        measured = [recording.scanned(id, seen.step) for id in seen.batch.replay if id in seen.scanned]
        drifts = [recording.scanned(id, seen.step).drift for id in seen.scanned]
        assert stats["scanned_drift_median"] == (pytest.approx(median(drifts)) if drifts else None)
        for key, values in (
            ("k3_mean", [r.k3 for r in measured]),
            ("entropy_mean", [r.entropy for r in measured]),
            ("drift_mean", [r.drift for r in measured]),
            ("headroom_mean", [r.headroom for r in measured]),
        ):
            assert stats[key] == (pytest.approx(sum(values) / len(values)) if values else None)


def test_a_batch_that_waits_longer_than_its_scan_takes_tells_all_of_it(recording: Recording):
    *_, seen = play(settings("headroom_drift", recording), get_policy("headroom_drift"), recording, 2)
    selection = replace(seen.selection, scan_seconds=0.2)
    for waited, exposed, hidden in ((0.5, 0.2, 0.0), (0.125, 0.125, 0.075), (0.0, 0.0, 0.2)):
        stats = batch_stats(seen.step, selection, [], seen.fresh, waited)
        told = [stats[key] for key in ("selection_wait_s", "scan_exposed_s", "scan_hidden_s")]
        assert told == pytest.approx([waited, exposed, hidden])


def test_parts_of_rewards_are_means_over_the_rollouts_that_have_them(recording: Recording):
    parts = ({"right": (3.0, 4), "form": (0.5, 1)}, {"right": (0.0, 2)}, {})
    fresh = [msgspec.structs.replace(h, reward_parts=p) for h, p in zip(recording.fresh(0), parts, strict=False)]
    assert reward_parts(fresh) == {"form": 0.5, "right": 0.5}


def test_groups_are_counted_by_right_and_wrong_and_by_rewards_that_differ(recording: Recording):
    *_, seen = play(settings("headroom_drift", recording), get_policy("headroom_drift"), recording, 2)
    n = len(seen.fresh[0].rewards) - 1
    alike = {"correct": [False] * (n + 1), "rewards": [0.0] * (n + 1), "signs": [0] * (n + 1)}
    graded = alike | {"rewards": [0.5] + [0.0] * n, "signs": [1] + [-1] * n}
    mixed = graded | {"correct": [True] + [False] * n}
    fresh = [msgspec.structs.replace(h, **c) for h, c in zip(seen.fresh, (alike, graded, mixed), strict=False)]
    stats = batch_stats(seen.step, seen.selection, [], fresh, 0.0)
    assert (stats["mixed_groups"], stats["spread_groups"]) == (1, 2)


def test_reuse_is_gini_by_its_definition_and_the_share_of_the_top_tenth(recording: Recording):
    config = settings("headroom_drift", recording)
    told = 0
    for seen in play(config, get_policy("headroom_drift"), recording, STEPS):
        uses = sorted(row.uses + (row.id in seen.batch.replay) for row in seen.before)
        if sum(uses) == 0:
            assert seen.batch.stats["reuse"] is None
            continue
        n, mean = len(uses), sum(uses) / len(uses)
        gini = sum(abs(a - b) for a, b in itertools.product(uses, uses)) / (2 * n * n * mean)
        top = sum(uses[-max(1, round(n / 10)) :]) / sum(uses)
        assert seen.batch.stats["reuse"] == {"max": uses[-1], "gini": pytest.approx(gini), "top_tenth": top}
        told += 1
    assert told > STEPS / 2


def test_an_empty_buffer_was_not_reused():
    assert reuse(Buffer(), []) is None


def test_what_if_acceptance_counts_the_drifts_at_or_below_each_multiple(recording: Recording):
    for seen in play(settings("headroom_drift", recording), get_policy("headroom_drift"), recording, STEPS):
        drifts = [recording.scanned(id, seen.step).drift for id in seen.scanned]
        expected = {
            f"{factor:g}": sum(d <= factor * 0.03 for d in drifts) / len(drifts) for factor in WHAT_IF_FACTORS if drifts
        }
        assert seen.batch.stats["what_if_tau"] == pytest.approx(expected)
    assert what_if_tau([], 0.03) == {}
