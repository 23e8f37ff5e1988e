"""What launch/index.py collects: a model's answers after every token and along texts.

Knows nothing of where the texts come from, or of HTTP.
"""
