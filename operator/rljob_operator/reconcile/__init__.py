"""One reconcile of one job, and when the next is due: observe, decide, write."""
