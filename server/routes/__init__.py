"""The routes: what each path and method does."""
