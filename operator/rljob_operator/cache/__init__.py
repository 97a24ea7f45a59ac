"""The cluster as the operator knows it, reduced to what decisions need. Event handlers and writers put objects in; nothing here reads the API."""
