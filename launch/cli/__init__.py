"""The command `lookahead`: which commands there are, how its line is read, its help, and how a command is started.

Nothing here imports PyTorch, transformers or Hydra, so that help and mistakes in a line are shown at once.
"""
