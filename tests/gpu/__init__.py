"""Tests that need a GPU. With --emulated-gpu those that start no processes run on the emulated one, to try them out."""
