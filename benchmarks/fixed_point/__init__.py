"""Parts of `benchmarks.fixed_point`: blocks of tokens on their way to the fixed point, and the picture of it."""
