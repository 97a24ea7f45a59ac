"""RLJobs in a YAML text, and `--set`: one reader for the plugin and the local run."""
