"""Other APIs' routes for answers, a room each: how a request is read and how an answer is written."""
