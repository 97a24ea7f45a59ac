"""`python -m rljob_trainer try`: data, rewards and agent of a job in seconds, without its model. A scripted policy stands in for the rollouts;
everything else is the driver's own code.
"""
