"""What a callback does where a caller names none."""


def always(*_: object) -> bool:
    return True


def never(*_: object) -> bool:
    return False


def nothing(*_: object) -> None:
    pass
