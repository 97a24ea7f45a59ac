"""Configurations of other systems become RLJobs: `kubectl rljob import`. Pure, from text to text; it knows the contract, and no cluster.

options           what an import is asked for
readers           what people write, which is read and never executed: scripts, overrides, interpolations
table settings    a row says what becomes of one key; a configuration as rules read it
engine report     a configuration and a table become fields and notes; the RLJob and its report
systems           the systems, each a table of keys (`rows`) and rules over several keys; `choice` lists them
shared            what several systems have alike
reference         the tables of docs/reference/import.md
"""
