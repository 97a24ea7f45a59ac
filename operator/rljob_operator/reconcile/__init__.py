"""The work queue, and one reconcile of one job: observe, decide, write."""
