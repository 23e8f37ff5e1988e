"""The experiments of arXiv 2402.02057: scaling law, ablation, sampling quality, costs; and the paper's own formulas."""
