"""Models and data from hubs, object stores and the web, copied to a volume once: by one process, resumed where it was left, held to digests."""
