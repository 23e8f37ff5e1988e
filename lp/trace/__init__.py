"""What a step did, for those who want to see it: its tree, where each node came from, and who computed it.

Nothing here runs for a request that does not ask for it. Knows neither runners nor ranks' links.
"""
