"""What users' Python files raised, in one line that names the file and the line. Imports nothing large: workers import it when they start."""

import traceback
from pathlib import Path


def explain(error: BaseException, path: str, name: str) -> str:
    """`reward() in reward.py: ValueError: text (line 7: the line)`: with the innermost frame in the user's file, if there is one."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == path]
    place = f" (line {frames[-1].lineno}: {frames[-1].line})" if frames else ""
    return f"{name}() in {Path(path).name}: {type(error).__name__}: {error}"[:3000] + place
