"""What a judge sees, and how it says that it could not judge."""

from dataclasses import dataclass

from rljob_trainer.failure import ConfigurationError


@dataclass(frozen=True, slots=True)
class Case:
    """One response to judge."""

    prompt: str
    response: str
    answer: str


class RewardFailed(Exception):
    """One call failed: it raised, took too long, or returned something that is not a finite number."""

    def __init__(self, field: str, path: str, reason: str):
        super().__init__(f"{field}: {reason}")
        self.field, self.path, self.reason = field, path, reason

    def as_configuration(self) -> ConfigurationError:
        """For the case that nothing of a step could be judged: only the user can mend that."""
        rule = f"every reward of a step failed; the first said: {self.reason}"
        return ConfigurationError(
            self.field, self.path, rule, "mend the function (try it on a row of the data), or raise timeoutSeconds"
        )
