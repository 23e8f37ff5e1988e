"""Servers whose ranks are killed, and the clients that watch, for benchmarks.rank_loss and benchmarks.soak."""
