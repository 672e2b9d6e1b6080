"""Which tokens a grammar, a schema or a regular expression allows."""
