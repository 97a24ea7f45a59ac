"""Checkpoints on a shared volume: when one is complete, who may write, and which one a run resumes from.

    global_step_N.tmp-<seq>/   being written under fence <seq>
    global_step_N/             complete: renamed to this after everything, its manifest.json last, was in it
    fence/<seq>.json           one for each attempt that opened the directory; only the newest may commit and prune

A manifest is valid when it was made under the newest fence, or the newest fence lists it.
"""
