"""How long one step takes and what its time is made of, for benchmarks.step_time; and steps that read a long prompt."""
