"""Tests with clients that nobody here wrote, unmodified, against a server that runs as a process of its own.

`make test-clients` runs them, and `make test` leaves them out. Each file test_NAME.py has a file requirements/NAME.txt,
from which `environments.py` makes an environment of its own: the clients contradict each other in what they need, and
none of them may change the project's own environment.
"""
