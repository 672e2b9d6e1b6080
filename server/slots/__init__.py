"""The KV of slots on disk."""
