"""Load tests: Locust against any OpenAI-compatible server, timed from the intended instant, with a report."""
