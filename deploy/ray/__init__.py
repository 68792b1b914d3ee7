"""The service on Ray Serve: one engine for each replica, as many replicas as the load asks for.

Every node runs a proxy of Serve's (`edge.py` lives there), which takes requests and chooses a replica
(`router.py`); each replica is the service's own app over one engine (`fleet.py`). Metrics are read at a port
of each replica (`metrics.py`), and Prometheus is told of these (`targets.py`).
"""
