"""The operator: observe, decide, write.

kopf's events fill a cache. A reconcile takes a frozen `Snapshot` of one job from it, `decide` is a pure function from that to the next status, and
`render` a pure function from both to the children that should exist. The status is written before what follows from it, so a crash between any two
writes loses nothing: the next reconcile derives the rest again.
"""
