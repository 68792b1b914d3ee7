"""Who may use the service, how much of it, and when: tenants, quotas, predictions, slots."""
