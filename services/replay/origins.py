"""Groups made under another tokenizer, template, reward or index are not comparable (docs/method.md, section 6).

The newest kind wins: when one is seen for the first time, what is stored is dropped. A kind that was replaced does not
come back with each of its groups, as in a rolling upgrade, where two kinds of actors run for a while; these are trained
fresh and not stored. Only when nothing else has come for long is it taken for the current one again: somebody undid
the change.
"""

from services.replay.state import State, Transaction
from shared.config import Config
from shared.messages import GroupHeader

UNDONE_GROUPS = 64  # of a replaced kind in a row, or two batches of them
KINDS_KEPT = 8


def seen(config: Config, state: State, tx: Transaction, header: GroupHeader) -> None:
    """Note what a group was made under; drop the stored groups when that is news."""
    c = state.counters
    kind = header.fingerprints
    if not c.fingerprints:
        c.fingerprints = kind
    if kind == c.fingerprints:
        c.replaced_in_row = 0
        return
    changed = ", ".join(sorted(k for k in kind if kind[k] != c.fingerprints.get(k)))
    if kind in c.replaced:
        c.replaced_in_row += 1
        if c.replaced_in_row < max(UNDONE_GROUPS, 2 * config.learner.batch):
            if c.replaced_in_row == 1 and not c.told_of_two_kinds:
                c.told_of_two_kinds = True
                text = f"groups of the {changed} from before the change still come: they are trained, not stored."
                tx.event("warning", service="replay", text=text)
            return
    dropped = [row.id for row in state.buffer]
    for id in dropped:
        tx.retire(id, tx.discard(id).bytes)
    c.rejected += len(dropped)
    text = f"{changed} changed: {len(dropped)} stored groups were dropped."
    tx.event("warning", service="replay", text=text)
    c.replaced = [k for k in [*c.replaced, c.fingerprints] if k != kind][-KINDS_KEPT:]
    c.fingerprints, c.replaced_in_row, c.told_of_two_kinds = kind, 0, False
