"""How ranks talk: exchanges of small integers, collectives of tensors, and who has stopped answering.

Knows no model, no token tree and no runner.
"""
