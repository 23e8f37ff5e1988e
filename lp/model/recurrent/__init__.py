"""Recurrent layers in a token tree: short convolutions, Gated DeltaNet, lightning attention and Mamba-2.

Nothing outside this package knows the kinds of layers, nor in which families they are.
"""
