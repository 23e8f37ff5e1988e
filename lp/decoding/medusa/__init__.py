"""Medusa decoding (arXiv 2401.10774): its settings, and trees of what a model's heads guess.

Knows neither the heads nor the model.
"""
