"""Adapters: their names and files, which of them are in memory, and which list a request gets."""
