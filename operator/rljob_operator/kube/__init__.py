"""The Kubernetes API server: requests on plain dicts, leader election, rate limit."""
