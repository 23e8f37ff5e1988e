"""Where drafts come from, what each source is worth, and how many drafts pay in a step.

Knows no model and no decoding method. It is given token trees and the accepted tokens.
"""
