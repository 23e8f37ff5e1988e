"""The engines that benchmarks.peers compares, each behind one face: transformers, llama.cpp and this project."""
