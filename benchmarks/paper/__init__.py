"""What comes from the paper itself: its formula for tokens per step, its measure of summaries."""
