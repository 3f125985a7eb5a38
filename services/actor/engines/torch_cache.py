"""Keys and values of the rows that generate together: one slot per row, each row from position 0 of its slot.

    slot 0  k k k k k k . . . .      a row that joins is written into the next slot, one that leaves is replaced by the
    slot 1  k k k . . . . . . .      last slot's row: no padding on the left, and nobody else's entries move
    slot 2  k k k k k . . . . .

`window` says which slots the next forward works on and where each of them ends; it writes its new entries there.
"""

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

_STEP = 64  # positions by which the buffer grows


class SlotLayer(CacheLayerMixin):
    """One attention layer's buffers, [slots, heads, positions, head size]."""

    def __init__(self) -> None:
        super().__init__()
        self.first = self.width = 0
        self.rows = self.columns = torch.empty(0, dtype=torch.long)

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Make empty buffers of the right kind."""
        self.keys = key_states.new_zeros((0, key_states.shape[1], 0, key_states.shape[3]))
        self.values = value_states.new_zeros((0, value_states.shape[1], 0, value_states.shape[3]))
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the window's new entries, [rows, heads, new, head size]; returns views over the window's slots."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        last = self.first + key_states.shape[0]
        self._grow(last, self.width)
        assert self.keys is not None and self.values is not None
        self.keys[self.rows, :, self.columns] = key_states.transpose(1, 2)
        self.values[self.rows, :, self.columns] = value_states.transpose(1, 2)
        return self.keys[self.first : last, :, : self.width], self.values[self.first : last, :, : self.width]

    def _grow(self, slots: int, positions: int) -> None:
        assert self.keys is not None and self.values is not None
        have_slots, heads, have_positions, _ = self.keys.shape
        if slots <= have_slots and positions <= have_positions:
            return
        slots = max(have_slots, slots if slots <= have_slots else slots + slots // 2)
        positions = max(have_positions, -(-positions // _STEP) * _STEP)
        for name in ("keys", "values"):
            old = getattr(self, name)
            new = old.new_zeros((slots, heads, positions, old.shape[3]))
            new[:have_slots, :, :have_positions] = old
            setattr(self, name, new)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """(positions the mask covers, where they begin)."""
        return self.width, 0

    def get_seq_length(self) -> int:
        """Positions in use before the forward that is running."""
        return self.width

    def get_max_length(self) -> int:
        """No limit."""
        return -1


class SlotCache(Cache):
    """The layers together."""

    def __init__(self, layers: int, device: torch.device) -> None:
        super().__init__(layers=[SlotLayer() for _ in range(layers)])
        self.device = device

    def window(self, first: int, starts: torch.Tensor, new: int) -> torch.Tensor:
        """Aim the next forward at slots first, first + 1, ...: slot i holds starts[i] entries and gets `new` more.

        Returns the attention mask, bool[rows, 1, new, positions]: a query sees its own slot up to itself.
        """
        columns = starts[:, None] + torch.arange(new, device=self.device)
        rows = torch.arange(first, first + len(starts), device=self.device)[:, None].expand_as(columns)
        width = int(starts.max()) + new
        for layer in self._slot_layers():
            layer.first, layer.width, layer.rows, layer.columns = first, width, rows, columns
        return (torch.arange(width, device=self.device) <= columns[:, :, None])[:, None]

    def copy(self, source: int, target: int, length: int) -> None:
        """Slot `target` becomes the first `length` entries of slot `source`."""
        for layer in self._slot_layers():
            assert layer.keys is not None and layer.values is not None
            layer._grow(target + 1, length)
            layer.keys[target, :, :length] = layer.keys[source, :, :length]
            layer.values[target, :, :length] = layer.values[source, :, :length]

    def take(self, slot: int, length: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """A copy of a slot's entries, to put back later."""
        return [(y.keys[slot, :, :length].clone(), y.values[slot, :, :length].clone()) for y in self._slot_layers()]  # type: ignore[index]

    def put(self, slot: int, entries: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Write what `take` returned into a slot."""
        for layer, (keys, values) in zip(self._slot_layers(), entries, strict=True):
            layer._grow(slot + 1, keys.shape[1])
            assert layer.keys is not None and layer.values is not None
            layer.keys[slot, :, : keys.shape[1]] = keys
            layer.values[slot, :, : values.shape[1]] = values

    def _slot_layers(self) -> list[SlotLayer]:
        return self.layers  # type: ignore[return-value]
