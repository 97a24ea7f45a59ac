"""Built-in rules that need a process of their own. The worker puts this directory on its path, so names here must not hide libraries'."""
