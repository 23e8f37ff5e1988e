"""The programs. No other package knows Hydra, HTTP or terminals."""
