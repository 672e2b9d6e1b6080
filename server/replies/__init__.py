"""From sampled tokens to a reply: text, reasoning, and calls of tools."""
