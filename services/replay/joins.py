"""Stored responses that join fresh groups of the same prompt: which, and the advantages of the groups they make."""

from services.replay.again import is_retired
from services.replay.selection import Selection
from services.replay.state import State
from shared.advantages import group_advantages
from shared.config import Config
from shared.messages import AGAIN, Part


def join(config: Config, state: State, selection: Selection, fresh: list[str]) -> tuple[list[str], dict[str, Part]]:
    """For each asked-again group in `fresh` the stored response of its prompt with the lowest current entropy.

    The stored groups in the order of the fresh ones, and the parts of both: the advantages are those of the fresh
    responses and the stored one together. Equal entropies: the group stored first, the first response of it. A group
    whose prompt has no stored response any more, or was solved by all of it, is trained as it is.
    """
    accepted: dict[int, list[str]] = {}  # by question
    for id, question in zip(selection.accepted, state.buffer.prompts(selection.accepted), strict=True):
        accepted.setdefault(question, []).append(id)
    replay: list[str] = []
    parts: dict[str, Part] = {}
    for id in fresh:
        header = state.fresh[id].header
        comparable = header.fingerprints == state.counters.fingerprints  # as all that is stored
        again = header.kind == AGAIN and comparable and not is_retired(state, header.number)
        best = _lowest_entropy(state, selection, accepted.get(header.number, [])) if again else None
        if best is None:
            continue
        stored, place, reward = best
        advantages = group_advantages([*header.rewards, reward], config.learner.advantage).tolist()
        own = [i for i, n in enumerate(header.sampled_tokens) if n > 0]
        replay.append(stored)
        parts[stored] = Part(rollouts=[place], advantages=advantages[-1:], joins=id)
        parts[id] = Part(rollouts=own, advantages=[advantages[i] for i in own])
    return replay, parts


def _lowest_entropy(state: State, selection: Selection, groups: list[str]) -> tuple[str, int, float] | None:
    """(group, place of the response, its reward) among these scanned groups."""
    found = []
    for id in groups:
        row = state.buffer.row(id)
        entropies = selection.refreshed[id].entropies or {}
        for place, reward in enumerate(row.responses):
            if reward and place in entropies:
                found.append((entropies[place], row.sequence, place, id, reward))
    if not found:
        return None
    _, _, place, id, reward = min(found)
    return id, place, reward
