"""The drafter and its sources in Python, which the compiled ones must equal step for step."""
