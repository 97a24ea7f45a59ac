"""Why a process ended an attempt."""


class ConfigurationError(ValueError):
    """The user's to mend; a restart cannot help."""

    def __init__(self, field: str, value: object, rule: str, fix: str) -> None:
        super().__init__(f"{field} = {value}: {rule}; {fix}")
        self.field, self.value, self.rule, self.fix = field, str(value), rule, fix
