"""A model of replicas and fleets: what a load would find, worked out and not measured."""
