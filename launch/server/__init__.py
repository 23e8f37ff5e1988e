"""The HTTP server of rank 0, with OpenAI's interface: its routes, and a thread-safe queue in front of the engine.

It hands requests to a backend (launch/backend.py) and knows nothing of how ranks are started, of sweeps or of Ray.
"""
