"""Times as text."""


def format_duration(time_us: float) -> str:
    """Return a time in ms or s with three significant digits.

    >>> format_duration(1_580_000.0), format_duration(15_630.0), format_duration(0.0), format_duration(1.234e9)
    ('1.58 s', '15.6 ms', '0 ms', '1,234 s')
    """
    if abs(time_us) >= 999_500_000:
        return f"{time_us / 1e6:,.0f} s"
    return f"{time_us / 1e6:.3g} s" if abs(time_us) >= 999_500 else f"{time_us / 1e3:.3g} ms"
