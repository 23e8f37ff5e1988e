"""Recurrent layers in a token tree: short convolutions, Gated DeltaNet, Mamba, Mamba-2 and lightning attention.

Nothing outside this package knows the kinds of layers, nor in which families they are.
"""
