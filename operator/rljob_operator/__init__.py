"""The operator: observe -> decide -> apply.

`observe` reads everything about one job into a frozen `Snapshot`. `decide` is a pure function from it to the next status, and `render` a pure
function from both to the children that should exist. `apply` writes the status first and then what follows from it, so that a crash between
any two writes loses nothing: the next pass derives the rest again.
"""
