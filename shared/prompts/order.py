"""A shuffled, endless order over a data set as a pure function: nothing to store, nothing to resume wrongly.

Position i lies in epoch i // n; each epoch is a permutation of its own. The permutation is a Feistel network
over the smallest even number of bits that holds n, walked until it lands below n (Black and Rogaway 2002,
"cycle walking"): a bijection whatever the round function, computed for one position without the others, in
under four walks on average.
"""

from functools import lru_cache

ROUNDS = 6
MASK = 2**64 - 1


@lru_cache(4096)  # a group's question is asked for a few times in the step that trains it
def order(seed: int, n: int, i: int) -> int:
    """The index, in [0, n), of the i-th example (i >= 0) of an endless sequence of seeded permutations of n
    examples.
    """
    assert n > 0, "an empty data set has no order"
    assert i >= 0, "positions start at 0"
    epoch, place = divmod(i, n)
    half = max(1, ((n - 1).bit_length() + 1) // 2)
    key = _mix(_mix(seed & MASK) ^ epoch)
    place = _permute(place, half, key)
    while place >= n:
        place = _permute(place, half, key)
    return place


def _permute(place: int, half: int, key: int) -> int:
    """A permutation of [0, 4 ** half)."""
    low_mask = (1 << half) - 1
    left, right = place >> half, place & low_mask
    for number in range(ROUNDS):
        left, right = right, left ^ (_mix(key ^ _mix(right * ROUNDS + number)) & low_mask)
    return left << half | right


def _mix(value: int) -> int:
    """The finaliser of SplitMix64 (Steele, Lea and Flood 2014): every input bit reaches every output bit."""
    value = (value + 0x9E3779B97F4A7C15) & MASK
    value = ((value ^ value >> 30) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ value >> 27) * 0x94D049BB133111EB) & MASK
    return value ^ value >> 31
