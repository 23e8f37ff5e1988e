"""How ranks talk: they exchange integers and tensors, and notice when a rank no longer answers.

Knows no model, no token tree and no runner.
"""
