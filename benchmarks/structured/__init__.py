"""Parts of `benchmarks.structured`: JSON schemas made at random, and what grammars cost and save."""
