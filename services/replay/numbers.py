"""Which training tasks are settled: a set of numbers that stays small, since they are settled nearly in order."""

from bisect import bisect_left, insort

import msgspec

from shared.messages import MOST_OPEN


class Settled(msgspec.Struct):
    """Every number below `below`, and those in `above` (ascending)."""

    below: int = 0
    above: list[int] = []

    def __contains__(self, number: int) -> bool:
        if number < self.below:
            return True
        at = bisect_left(self.above, number)
        return at < len(self.above) and self.above[at] == number

    def add(self, number: int) -> None:
        """Settle one; a second time changes nothing."""
        if number in self:
            return
        insort(self.above, number)
        done = 0
        while done < len(self.above) and self.above[done] == self.below:
            self.below += 1
            done += 1
        del self.above[:done]

    def all_but(self, issued: int, open_numbers: list[int]) -> None:
        """Settle every number below `issued` that is not open, and nothing else; but all of those far behind."""
        still = set(open_numbers)
        self.below = max(min(still, default=issued), issued - MOST_OPEN)
        self.above = [number for number in range(self.below, issued) if number not in still]
