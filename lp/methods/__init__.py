"""Decoding methods, a slice each: settings, bounds, checks and decoder. Knows no scheduler, runner or rank."""
