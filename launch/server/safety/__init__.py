"""Who may talk to the server, and for how long: hosts, origins, keys, certificates, limits of connections.

Knows nothing of requests' bodies, of routes and of the engine.
"""
