"""OpenAI's API: the bodies it takes, how they become requests of the engine, and its replies. Knows no routes."""
