"""What runs outside the agent: the nursery, the keepers forked from it, and what starts their containers.

Only the standard library is used here, and nothing of podkeeper outside this package: what is imported, each keeper
pays for. So this file stays empty too.
"""
