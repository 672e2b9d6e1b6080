"""Speak HTTP: the dialects of llama-server, OpenAI and Anthropic, streams, metrics, and the command `cohort`."""
