"""What one step costs and what its time is made of, for benchmarks.step_time."""
