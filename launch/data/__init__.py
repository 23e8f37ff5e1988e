"""What goes into a program and what comes out: prompts, workloads, texts for a corpus; results as text or JSON.

Knows no server and no cluster.
"""
