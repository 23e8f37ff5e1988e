"""Where drafts come from, what each source is worth, and how many drafts a step should carry.

Knows no model and no decoding method; it is told of token trees and of what was accepted.
"""
