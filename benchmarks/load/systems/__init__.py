"""The systems that benchmarks.load measures: what the command line calls them, how they are started and asked."""
