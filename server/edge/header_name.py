"""Names of headers that are sent in the letters in which they are written here."""


class HeaderName(bytes):
    """A header's name that stays as it is spelled. HTTP does not mind, but llama-server's clients may look for a name
    letter by letter, and Uvicorn writes names in lower case.
    """

    def lower(self) -> bytes:
        """Return the name as it is: what Uvicorn asks for before it sends a name."""
        return self
