"""OpenAI's older completions: text that goes on, without a conversation."""
