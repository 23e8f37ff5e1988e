"""Servers whose ranks are killed, and clients that watch them, for benchmarks.rank_loss and benchmarks.soak."""
