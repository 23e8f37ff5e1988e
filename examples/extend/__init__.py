"""Parts that a user adds to the project, each in one file that runs: `python -m examples.extend.draft_source`."""
