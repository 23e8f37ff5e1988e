"""What the paper itself uses: its formula for tokens per step, and its measure of summaries."""
