"""The sentence of the system: open a request, hold its answer, say what happened."""
