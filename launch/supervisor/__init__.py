"""A front end that is no rank: it starts the ranks, watches them, and regroups them when one is lost."""
