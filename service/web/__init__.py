"""HTTP and server-sent events: bytes to requests, deltas to bytes."""
