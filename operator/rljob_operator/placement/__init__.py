"""Placement of the `builtin` backend: one job at a time has its turn, with all others' seats in view.

    asked.asked       what a job lacks                                pure
    turn.take_turns   who gets what: priority, then age               pure
    board.Board       nodes, pods and seats as the cache show them   the edge
    bind.operations   the one patch that releases a pod to its node   pure

The rest is the policy decide/place.py, which writes seats into status before `bind` acts on them.
"""
