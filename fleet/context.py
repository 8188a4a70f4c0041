"""The Context a step receives."""

from __future__ import annotations


class Context:
    """What a step knows about its run, and what it may ask for."""
