"""What a checker raises."""


class Violation(Exception):
    """A guarantee was broken."""

    def __init__(self, guarantee: str, detail: str) -> None:
        super().__init__(f"{guarantee}: {detail}")
        self.guarantee = guarantee
        self.detail = detail
