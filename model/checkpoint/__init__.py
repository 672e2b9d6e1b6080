"""Checkpoints: configuration and tensors, whatever kind of files they come in."""
