"""The function that the policy may call, in the form of the example in which the chat template shows it (tools.yaml)."""


def add(a: int, b: int) -> int:
    """The sum of two numbers."""
    return a + b
