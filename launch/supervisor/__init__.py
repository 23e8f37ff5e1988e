"""A front end that is no rank: it starts the ranks, watches them, and forms them anew when one is lost."""
