"""From chat messages to a prompt."""
