"""The step that is being put together: scans are asked for while fresh groups arrive, then its batch is sent.

It is begun when the learner stands at the step, and given up whenever what it rests on has changed; begun anew, it goes
through the buffer in the same order.
"""

import time
from collections.abc import Callable

from services.replay import again, transitions
from services.replay.counterfactual import Counterfactual
from services.replay.policies import Policy
from services.replay.records import Composed
from services.replay.rules import Moment
from services.replay.selection import Selection, groups_wanted
from services.replay.state import State, Transaction
from shared.config import Config
from shared.messages import Record, Scan, ScanResult
from shared.seeds import derive


class NextStep:
    """One step from its first scan to its batch.

    `scanned`: the records of what was scanned so far, by group; `fresh_here`: whether its fresh groups were there when
    its batch was last asked for.
    """

    def __init__(self, config: Config, policy: Policy, state: State, name_scan: Callable[[], str]) -> None:
        """name_scan: gives a scan a name that no other has, over all lives of replay."""
        self._config, self._state, self._name_scan = config, state, name_scan
        self._per_rollout = policy.again is not None and policy.again.joined
        self._selection = Selection(
            policy=policy,
            buffer=state.buffer,
            wanted=groups_wanted(policy, config),
            tau=transitions.gate_of(config, state).tau,
            chunk=config.replay.scan_chunk,
            group_size=config.rollout.group_size,
            moment=Moment(
                state.counters.step,
                seed=derive(config.run.seed, 2, state.counters.step),
                asked=again.asked(state),
            ),
        )
        self._scan = ""  # the one that is with the learner
        self.fresh_here = False
        self._fresh_since: float | None = None
        self._selected_at = 0.0

    @property
    def scanned(self) -> dict[str, Record]:
        """What was measured of the groups scanned so far."""
        return self._selection.refreshed

    def ask(self, tx: Transaction) -> None:
        """Send the next scan, if another is needed."""
        ids = self._selection.next_scan()
        if self._selection.done:
            self._selected()
        else:
            self._send_scan(tx, ids)

    def take(self, tx: Transaction, result: ScanResult) -> None:
        """Gate what the learner has scanned, and ask on. A scan of a step that was given up is ignored."""
        if result.scan != self._scan or result.version != self._state.counters.version:
            return
        self._scan = ""
        selection = self._selection
        if selection.counterfactual is not None:
            selection.counterfactual.take(result.records)
            return
        selection.take(result.records, result.seconds)
        self.ask(tx)

    def compose(self, tx: Transaction) -> Composed | None:
        """Send the batch; None while fresh groups or scans are still awaited."""
        fresh = transitions.fresh_for_step(self._config, self._state)
        self.fresh_here = fresh is not None
        if fresh is None:
            self._compare(tx)
            return None
        self._fresh_since = self._fresh_since or time.monotonic()
        if not self._selection.done:
            return None
        waited_s = max(0.0, self._selected_at - self._fresh_since)
        transitions.batch_composed(self._config, self._state, tx, self._selection, fresh, waited_s)
        return self._state.batches[self._state.counters.step]

    def _send_scan(self, tx: Transaction, ids: list[str]) -> None:
        self._scan = self._name_scan()
        step = self._state.counters.step
        tx.send(tx.keys.work, Scan(scan=self._scan, step=step, ids=ids, per_rollout=self._per_rollout))

    def _selected(self) -> None:
        self._selected_at = time.monotonic()
        if self._config.replay.counterfactual:
            s = self._selection
            s.counterfactual = Counterfactual(s.buffer, s.accepted, s.refreshed, s.wanted)

    def _compare(self, tx: Transaction) -> None:
        """While fresh groups are awaited the learner may as well measure what `naive` would have picked."""
        counterfactual = self._selection.counterfactual
        if counterfactual is not None and not self._scan and (ids := counterfactual.next_scan()):
            self._send_scan(tx, ids)
