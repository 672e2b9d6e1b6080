"""Decide which requests run together in each step. Standard library only; no I/O, no clock, no tensors."""
