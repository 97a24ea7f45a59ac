"""All that knows the clients' protocol: that of the SDK `tinker`, as its version 0.38 speaks it."""
