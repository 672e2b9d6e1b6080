"""Speak HTTP: llama-server's and OpenAI's dialects, streams, metrics, and the command `cohort`."""
