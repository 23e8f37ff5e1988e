"""Couplings: rules by which a row's target depends on what was drafted after the row.

Without one, targets do not depend on drafts at all: they are the arg max, or what the noise of their positions draws,
so a text is the same whatever is drafted. A coupling gives that up. It decides the target of each row; verification
by equality with the targets stays as it is. Each coupling is a file here and a line in `COUPLINGS` of `chooser.py`.
"""
