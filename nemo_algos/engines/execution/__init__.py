"""Rewards that run code: programs, SQL, a server."""
