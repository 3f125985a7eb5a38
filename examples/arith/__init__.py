"""Arith: generated sums and differences of three-digit numbers, and a small policy that works them out carelessly."""
