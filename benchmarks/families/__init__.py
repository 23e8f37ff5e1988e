"""Tries every family of causal language models that transformers has, each as a tiny model with random weights."""
