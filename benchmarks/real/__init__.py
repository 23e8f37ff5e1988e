"""The parts of benchmarks.real_model: what each measures, and how its figures are kept and shown."""
