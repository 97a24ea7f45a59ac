"""How the operator's control message reaches the pods, and how their reports get back."""
