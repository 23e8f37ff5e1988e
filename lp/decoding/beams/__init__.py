"""Beam search: the hypotheses of one text are branches of one token tree. Knows nothing of runners, ranks or texts."""
