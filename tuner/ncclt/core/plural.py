"""Numbers with their noun."""


def count_noun(count: int, noun: str, plural: str = "") -> str:
    """Return a number and its noun.

    >>> count_noun(1, "row"), count_noun(0, "row"), count_noun(2, "study", "studies")
    ('1 row', '0 rows', '2 studies')
    """
    return f"{count} {noun if count == 1 else plural or f'{noun}s'}"
