"""What the time of a version's way to the actors costs a step, and what telling replay of the step before would save.

    python -m benchmarks.publishing [--batch 32] [--slots 8] [--steps 20] [--way 0.2]

The admission rule is played in virtual time, with no cost but the waiting itself: b fresh and b/2 stored groups, scans
of 40 % acceptance for a third of training, and between the last byte of a version and its notice `way` of the time that
training b groups takes. `told first`: replay hears of the step before that, and the next step's scans and its first
quarter run beside it, which is the most there could be. `no way`: there is nothing to wait for.
"""

import heapq

from benchmarks.figure import Figure, run_alone
from benchmarks.load import WARM_UP, Load
from services.replay.admission import Fresh, choose_fresh, tasks_to_issue

REPLAYED = 0.5  # of b
SCAN = REPLAYED / 0.4 / 3  # of the time that training b groups takes
BESIDE = 1 / 4  # of a step: its first mini-batch, up to the update
TOLD, SCANNED_OR_PUBLISHED, TRAINED = -1, -2, -3


def measure(
    *,
    batch: int = 32,
    slots: int = 8,
    steps: int = 20,
    way: float = 0.2,
    repetitions: int = 3,
    lags: tuple[int, ...] = (0, 1),
    capacities: tuple[float, ...] = (3.0, 1.0, 0.33),
) -> list[Figure]:
    """Step times over those of a learner that tells replay and actors at once, for each lag and speed of generation."""
    figures = []
    for lag in lags:
        for capacity in capacities:
            loads = [
                Load(batch=batch, slots=slots, steps=steps, capacity=capacity, max_lag=lag, seed=seed)
                for seed in range(repetitions)
            ]
            at_once = [step_s(load, way) for load in loads]
            name = f"publishing, max_lag {lag}, b groups made in {1 / capacity:.2g} of their training"
            for arm, ours in (
                ("told first", [step_s(load, way, told_first=True) for load in loads]),
                ("no way", [step_s(load, 0.0) for load in loads]),
            ):
                figures.append(Figure(name=f"{name}: {arm}", unit="s", ours=ours, peer=at_once, against="told at once"))
    return figures


def step_s(load: Load, way: float, *, told_first: bool = False) -> float:
    """Seconds per measured step. `way`: of training b groups, from a version's last byte to its notice."""
    now = began = published = 0.0  # published: when the newest version is, past or future
    version = issued = 0
    free, idle, told = load.slots, True, True
    queue: list[tuple[int, float]] = []  # (task, when the weights are there that it may begin under)
    due: dict[int, int] = {}  # of every open task
    arrived: set[int] = set()
    batch: list[int] = []
    scanned = SCAN * load.step_s
    ends: list[tuple[float, int]] = [(scanned, SCANNED_OR_PUBLISHED)]  # (when, task or what else)
    while True:
        if told:
            last = WARM_UP + load.steps + load.max_lag + 1
            for _ in range(tasks_to_issue(len(due), version, load.batch, load.max_lag, last)):
                queue.append((issued, published))
                due[issued] = version + load.max_lag
                issued += 1
            told = False
        while queue and free:
            task, there = queue.pop(0)
            heapq.heappush(ends, (max(now, there) + load.length(task) * load.group_s, task))
            free -= 1
        if idle and now >= scanned:
            here = [Fresh(due[n], n, str(n)) for n in arrived]
            running = [due[n] for n in due if n not in arrived]
            if chosen := choose_fresh(here, running, version, load.batch):
                batch = [fresh.number for fresh in chosen]
                arrived -= set(batch)
                idle = False
                seconds = (1 + REPLAYED) * sum(map(load.train_s, batch))
                updated = max(now + BESIDE * seconds, published)
                heapq.heappush(ends, (updated + (1 - BESIDE) * seconds, TRAINED))
        now, event = heapq.heappop(ends)
        if event >= 0:
            arrived.add(event)
            free += 1
        elif event == TRAINED:
            published = now + way * load.step_s
            heapq.heappush(ends, (now if told_first else published, TOLD))
        elif event == TOLD:
            for n in batch:
                del due[n]
            version, idle, told, scanned = version + 1, True, True, now + SCAN * load.step_s
            heapq.heappush(ends, (scanned, SCANNED_OR_PUBLISHED))
            if version == WARM_UP:
                began = now
            if version == WARM_UP + load.steps:
                return (now - began) / load.steps


if __name__ == "__main__":
    run_alone(measure)
