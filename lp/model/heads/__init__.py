"""Decoding heads of a model (Medusa, arXiv 2401.10774): their arithmetic, their files, and their evaluation for the
rows of a step. Knows nothing of trees, requests or ranks.
"""
