"""Processes that run a user's code for the driver, next to it or in pods of their own, and which of them gets the next call."""
