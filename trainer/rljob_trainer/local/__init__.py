"""`python -m rljob_trainer run`: a job on one machine, without Kubernetes."""
