"""A front end that is no rank: it starts the ranks, watches them, and regroups them when one is lost.

Knows no HTTP and no sweep. What starts processes is a launcher: for one machine here, for a Ray cluster in
launch/cluster.
"""
