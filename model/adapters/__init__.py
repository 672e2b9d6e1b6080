"""Adapters: files of every kind, and what they change."""
