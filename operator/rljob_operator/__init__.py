"""The operator: observe, decide, write.

Events fill a cache. A reconcile takes a frozen `Snapshot` of one job from it. `decide` is a pure function from the snapshot to the next status, and
`render` one from both to the children that should exist. The status is written before anything follows from it, so a crash between any two writes
loses nothing: the next reconcile derives the rest again.
"""
