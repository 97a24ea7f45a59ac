"""One job at one moment, as values: what policies, schedulers and renderers read. Imports none of them."""
