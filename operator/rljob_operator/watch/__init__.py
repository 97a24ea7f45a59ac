"""What happens in the cluster, into the cache. kopf watches the quiet kinds, reflectors the others, and lists say what both do not."""
