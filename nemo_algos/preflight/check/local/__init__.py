"""The embedded engine's rules."""
