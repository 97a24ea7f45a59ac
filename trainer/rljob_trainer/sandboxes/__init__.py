"""Where agents run programs that nobody trusts: pods of the spec's environments, or in a local run directories of this machine."""
