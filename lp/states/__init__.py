"""What a device holds of sequences: keys and values, settings, and what a second model has of them."""
