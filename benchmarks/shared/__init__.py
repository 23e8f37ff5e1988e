"""What many benchmarks share: options, prompts and models, decoded texts, timing of exchanges, tables and plots."""
