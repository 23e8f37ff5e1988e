"""Parts of `benchmarks.methods`: how each decoding method is run, its rounds and its report."""
