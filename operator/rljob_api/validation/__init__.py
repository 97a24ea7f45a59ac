"""Every rule of a spec that can be checked before a pod exists."""
