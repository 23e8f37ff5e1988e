"""The HTTP server of rank 0, with OpenAI's interface: its routes, and a thread-safe queue in front of the engine."""
