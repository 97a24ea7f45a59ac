"""`python -m rljob_trainer data`: well-known data sets, from a local copy, into the columns that an RLJob reads by default."""
