"""The programs: a file here is a command, and what commands share lies in the packages.

No other package knows Hydra, HTTP, Ray or terminals.
"""

import gc

# What a command imports is a million objects that stay until it ends. Looking through them for garbage again and again
# takes a tenth of the time of importing, so Python looks less often until launch.config.process.freeze_heap.
USUAL_THRESHOLDS = gc.get_threshold()
gc.set_threshold(200_000, *USUAL_THRESHOLDS[1:])
