"""Checkpoints on a shared volume: what makes a directory one, who may write them, and which one a run resumes from.

    global_step_N.tmp-<seq>/   being written under fence <seq>
    global_step_N/             complete: it got this name once all was in it, its manifest.json last
    fence/<seq>.json           one per attempt that ever opened the directory; the newest alone may commit and prune

A manifest is valid when it was made under the newest fence, or the newest fence lists it.
"""
