"""OpenAI's completions and chat completions: the form of their answers."""
