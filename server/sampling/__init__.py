"""How tokens are chosen: by bodies and by settings."""
