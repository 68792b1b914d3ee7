"""Dashboards as Python. `python -m grafana` writes the JSON that Grafana reads."""
