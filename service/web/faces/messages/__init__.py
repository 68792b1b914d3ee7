"""Anthropic's messages: the same conversation, answer and calls, in blocks of content."""
