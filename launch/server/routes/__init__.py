"""The server's routes by subject."""
