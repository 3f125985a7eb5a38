"""The check for leaks notices one, and takes noise and a warm-up for none."""

import numpy as np

from tests.leaks.slope import Series, fit, grows, is_blurred

TIMES = np.arange(0, 600, 5.0)


def measured(values: np.ndarray) -> Series:
    return Series(TIMES.tolist(), values.tolist())


def test_a_leak_is_found_under_noise():
    leak = measured(500 + 200 * TIMES / 3600 + np.random.default_rng(0).normal(0, 2, len(TIMES)))
    slope, error = fit(leak)
    assert abs(slope - 200) < 4 * error and grows(slope, error, 60)


def test_figures_too_scattered_to_show_a_leak_are_no_all_clear():
    noise = np.random.default_rng(2).normal(0, 1, len(TIMES))
    calm, wild = (fit(measured(500 + spread * noise)) for spread in (1, 60))
    assert not is_blurred(calm[1], 60) and not grows(*wild, 60) and is_blurred(wild[1], 60)


def test_noise_and_a_warm_up_are_no_leak():
    rising = 500 + 50 * np.minimum(TIMES, 180) / 180 + np.random.default_rng(1).normal(0, 2, len(TIMES))
    assert grows(*fit(measured(rising)), 60)
    assert not grows(*fit(measured(rising).after(1 / 3)), 60)
