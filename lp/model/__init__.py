"""The single-device model: Hugging Face checkpoints through transformers' own classes, a tree at a time."""
