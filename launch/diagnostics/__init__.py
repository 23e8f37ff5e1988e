"""What `lookahead doctor` and `lookahead tune` find out: machine, links, software, caches, choices, and speed of steps.

It measures briefly and reuses what the other packages know; it changes nothing but the caches.
"""
