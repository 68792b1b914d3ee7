"""OpenAI's responses: a conversation of items, answered in items, kept where the caller wants it."""
