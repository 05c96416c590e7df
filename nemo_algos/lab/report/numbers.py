"""How a number is written in the report: one function for tables, captions and the page's data."""

from math import isfinite, isnan

MISSING = "–"  # noqa: RUF001


def format_number(x: float | None, digits: int = 3) -> str:
    """Three decimals, or three significant digits; NaN, ∞ and -∞ by name; – for None."""
    if x is None:
        return MISSING
    if not isfinite(x):
        return "NaN" if isnan(x) else ("∞" if x > 0 else "-∞")
    if x == int(x) and abs(x) < 1e6:
        return str(int(x))
    return f"{x:.{digits}f}" if 0.01 <= abs(x) < 10 else f"{x:.{digits}g}"


def format_signed(x: float) -> str:
    """With its sign, for differences."""
    return format_number(x) if not x > 0 else f"+{format_number(x)}"
