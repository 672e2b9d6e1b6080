"""Embeddings, from a body to an answer."""
