"""What many benchmarks share: prompts and models in, tables, plots and result files out."""
