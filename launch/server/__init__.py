"""The OpenAI-compatible HTTP server of rank 0: a thread-safe front of the engine, and the routes that speak to it."""
