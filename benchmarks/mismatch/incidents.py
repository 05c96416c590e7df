"""Incidents of 2026, rebuilt as dumps."""

from __future__ import annotations

from kinds import Kind

KINDS: list[Kind] = []
