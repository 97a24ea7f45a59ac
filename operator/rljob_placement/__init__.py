"""Where the pods of a gang go, as a pure function: used by the operator, and by `kubectl rljob plan` as a preview.

nodes, pods -> cluster.Cluster      what is free where
spec        -> gang.Gang            what is needed, and who talks to whom
both        -> plan.plan            a node for every pod, or why not
all three   -> report.report        domains, crossings and bytes
"""
