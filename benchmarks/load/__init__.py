"""The parts of benchmarks.load: clients that load servers over HTTP, the servers, and the figures of what clients saw.

It knows servers by their command lines and by HTTP, and nothing of what happens inside them.
"""
