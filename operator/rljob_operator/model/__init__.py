"""One job at one moment, as values that policies, schedulers and `render` read. Imports none of these."""
