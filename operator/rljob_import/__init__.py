"""Configurations of other systems become RLJobs: `kubectl rljob import`.

systems                                the systems, each a table of keys and a few rules over several keys
verl trinity roll llama_factory rlinf   one system each; megatron adapters amounts places held_out: what they share
table engine settings                  a row of a table; a configuration and a table become fields and notes
shell words arithmetic hydra interpolation   readers of what people write, which execute nothing
importing writer reference             the RLJob and its report, its comments, the tables of docs/import.md
"""
