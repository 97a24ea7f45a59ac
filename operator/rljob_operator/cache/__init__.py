"""What the operator knows of the cluster, reduced to what decisions need. Pure: handlers and writers put objects in, nothing here reads the API."""
