"""What `lookahead doctor` finds out: this machine, links between ranks and GPUs, software, caches, and what is chosen.

It measures briefly and reuses what the other packages know; it changes nothing but the caches.
"""
