"""Continuous batching for the torch engine: rows join and leave between two decode steps, sampled by inverse CDF.

    request -> joining -> [ prefill: same prompts once, kept turns continued ] -> running -> finished
                  ^------------------- new weights: everything is computed again -----|

Sampling is reproducible by a loop of a dozen lines: one uniform number per token from the request's own generator, and
the token is how many entries of cumsum(softmax(float64 logits / T)) are at most u times its last.

The last bits of a log-probability depend on which rows share a forward, hence on timing. `alone` runs one row at a time
from an empty cache: then they depend on its tokens and the weights and nothing else.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence

import torch

from services.actor.engines.engine import Finish, add_run
from services.actor.engines.torch_model import TorchModel
from services.actor.engines.torch_request import Request
from shared.versions import Version

PREFILL_TOKENS = 8192  # of one prefill, padding included
KEPT_BYTES = 2**28  # of keys and values that wait for their next turn

Entries = list[tuple[torch.Tensor, torch.Tensor]]  # keys and values of one row, per layer


class Batch:
    """The rows that generate together. Not thread-safe: it belongs to the engine's thread."""

    def __init__(
        self, model: TorchModel, decode: Callable[[Sequence[int]], str], ends: Sequence[int], alone: bool = False
    ) -> None:
        """`decode` finds stop strings; `ends` are the ids that end a turn; `alone`: no two rows share anything."""
        self.model, self.decode, self.ends, self.alone = model, decode, frozenset(ends), alone
        self.cache = model.new_cache()
        self.joining: list[Request] = []
        self.running: list[Request] = []  # row i is in slot i
        self._kept: OrderedDict[tuple[int, ...], Entries] = OrderedDict()
        self._kept_bytes = 0
        self._text: dict[int, str] = {}

    @property
    def empty(self) -> bool:
        """Whether there is nothing to do."""
        return not self.joining and not self.running

    def forget_cache(self) -> None:
        """The weights changed: running rows are computed again, kept turns are dropped."""
        self.joining = self.running + self.joining
        self.running = []
        self._kept.clear()
        self._kept_bytes = 0
        self.cache = self.model.new_cache()

    def step(self, version: Version) -> int:
        """Let waiting rows in, then give every row one token; returns how many tokens were sampled."""
        self._drop(lambda row: row.cancelled)
        waiting, self.joining = [row for row in self.joining if not row.cancelled], []
        if self.alone:
            places = 0 if self.running else 1
            waiting, self.joining = waiting[:places], waiting[places:]
            self.cache = self.cache if self.running else self.model.new_cache()
        sampled = len(waiting)
        if waiting:
            self._prefill(waiting, version)
            self._drop(lambda row: row.finish is not None)
        if self.running:
            starts = [len(row.ids) - 1 for row in self.running]
            logits = self.model.extend(self.cache, 0, starts, [[row.ids[-1]] for row in self.running])
            self._sample(self.running, logits, version)
            sampled += len(self.running)
            self._drop(lambda row: row.finish is not None)
        return sampled

    def _prefill(self, rows: list[Request], version: Version) -> None:
        alike: dict[tuple[int, ...], list[Request]] = {}
        for row in rows:
            alike.setdefault(tuple(row.ids), []).append(row)
        past = {ids: self._claim(ids) for ids in alike}
        starts = {ids: entries[0][0].shape[1] if entries else 0 for ids, entries in past.items()}
        todo = sorted(alike, key=lambda ids: len(ids) - starts[ids])
        while todo:
            part = [todo.pop(0)]
            while todo and (len(part) + 1) * (len(todo[0]) - starts[todo[0]]) <= PREFILL_TOKENS:
                part.append(todo.pop(0))
            first = len(self.running)
            for slot, ids in enumerate(part, first):
                if past[ids]:
                    self.cache.put(slot, past[ids])
            new = [ids[starts[ids] :] for ids in part]
            logits = self.model.extend(self.cache, first, [starts[ids] for ids in part], new)
            self.running += [alike[ids][0] for ids in part]
            where = list(range(len(part)))
            for at, ids in enumerate(part):
                for row in alike[ids][1:]:
                    self.cache.copy(first + at, len(self.running), len(ids))
                    self.running.append(row)
                    where.append(at)
            self._sample(self.running[first:], logits[where], version)

    def _claim(self, ids: tuple[int, ...]) -> Entries:
        """The entries of the longest kept turn that `ids` go on from, which are then no longer kept; else none."""
        for length in sorted({len(kept) for kept in self._kept if len(kept) < len(ids)}, reverse=True):
            if entries := self._kept.pop(ids[:length], None):
                self._kept_bytes -= _bytes(entries)
                return entries
        return []

    def _sample(self, rows: list[Request], logits: torch.Tensor, version: Version) -> None:
        tokens, logprobs = sample(logits, [row.sampling.temperature for row in rows], [_uniform(row) for row in rows])
        for row, token, logprob in zip(rows, tokens, logprobs, strict=True):
            row.ids.append(token)
            row.logprobs.append(logprob)
            add_run(row.version_runs, 1, version)
            row.finish = self._finish(row, token)

    def _finish(self, row: Request, token: int) -> Finish | None:
        if token in self.ends:
            return "eos"
        if row.sampling.stop and self._may_complete(token, row.sampling.stop):
            text = self.decode(row.ids[row.prompt :])
            if any(stop in text for stop in row.sampling.stop):
                return "stop"
        return "length" if len(row.ids) - row.prompt >= row.sampling.max_tokens else None

    def _may_complete(self, token: int, stop: tuple[str, ...]) -> bool:
        # Decoding a whole turn for every token would cost more than the model; a piece shows its ASCII as it is.
        text = self._text.get(token)
        if text is None:
            text = self._text[token] = self.decode([token])
        return any(s[-1] in text or not s[-1].isascii() for s in stop)

    def _drop(self, leaves: Callable[[Request], bool]) -> None:
        for slot in range(len(self.running) - 1, -1, -1):
            row = self.running[slot]
            if not leaves(row):
                continue
            if row.sampling.stop and row.finish != "length" and not row.cancelled and not self.alone:
                self._keep(slot, row)
            last = len(self.running) - 1
            if slot != last:
                self.cache.copy(last, slot, len(self.running[last].ids) - 1)
                self.running[slot] = self.running[last]
            self.running.pop()
            if not row.cancelled:
                row.deliver(row)

    def _keep(self, slot: int, row: Request) -> None:
        length = len(row.ids) - 1
        ids = tuple(row.ids[:length])
        if same := self._kept.pop(ids, None):  # of a rollout that ended alike
            self._kept_bytes -= _bytes(same)
        entries = self._kept[ids] = self.cache.take(slot, length)
        self._kept_bytes += _bytes(entries)
        while self._kept_bytes > KEPT_BYTES:
            self._kept_bytes -= _bytes(self._kept.popitem(last=False)[1])


def sample(
    logits: torch.Tensor, temperatures: Sequence[float], uniforms: Sequence[float]
) -> tuple[list[int], list[float]]:
    """Tokens and their log-probabilities for float32[rows, V] logits. Temperature 0: arg-max, log-probability at 1."""
    wide = logits.double()
    heat = torch.tensor([t or 1.0 for t in temperatures], dtype=torch.float64, device=logits.device)
    logp = (wide / heat[:, None]).log_softmax(-1)
    cdf = logp.exp().cumsum(-1)
    u = torch.tensor(uniforms, dtype=torch.float64, device=logits.device)
    tokens = torch.searchsorted(cdf, (u * cdf[:, -1])[:, None], right=True)[:, 0].clamp(max=logits.shape[-1] - 1)
    if 0 in temperatures:
        greedy = torch.tensor([t == 0 for t in temperatures], device=logits.device)
        tokens = torch.where(greedy, wide.argmax(-1), tokens)
    return tokens.tolist(), logp.gather(-1, tokens[:, None])[:, 0].tolist()


def _uniform(row: Request) -> float:
    return row.uniform.random() if row.sampling.temperature else 0.0


def _bytes(entries: Entries) -> int:
    return sum(k.nbytes + v.nbytes for k, v in entries)
