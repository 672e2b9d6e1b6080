"""llama.cpp's own server tests, run against this server: `make test-upstream`."""
