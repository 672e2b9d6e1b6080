"""Tools: offered in prompts, called in replies."""
