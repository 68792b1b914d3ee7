"""What happened to a request: recorded as plain data, told to response, span, metrics and log."""
