"""How a number is written in the report: one function for tables, captions and the page's data."""

from math import isfinite, isnan

MISSING = "–"  # noqa: RUF001


def format_number(x: float | None, digits: int = 3) -> str:
    """Three decimals, or three significant digits; NaN, ∞ and -∞ by name; – for None."""
    if x is None:
        return MISSING
    if isnan(x):
        return "NaN"
    if not isfinite(x):
        return "∞" if x > 0 else "-∞"
    if x == int(x) and abs(x) < 1e6:
        return str(int(x))
    if 0.01 <= abs(x) < 10:
        return f"{x:.{digits}f}"
    return f"{x:.{digits}g}"


def format_signed(x: float) -> str:
    """With its sign, for differences."""
    if x > 0:
        return f"+{format_number(x)}"
    return format_number(x)
