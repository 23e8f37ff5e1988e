"""Where prompts come from (the command line, files, well-known data sets), and the queue from which they are served.

Knows no engine and no rank.
"""
