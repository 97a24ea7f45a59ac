"""Places the pods of a gang on nodes, as a pure function: for the operator, and for the preview of `kubectl rljob plan`.

nodes, pods -> cluster.Cluster      what is free on which node
spec        -> gang.Gang            which pods are needed, and how much they exchange
both        -> plan.plan            a node for every pod, or why there is none
all three   -> report.report        topology domains, and bytes between them
"""
