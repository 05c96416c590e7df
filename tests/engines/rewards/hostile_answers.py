"""Responses meant to hang, crash or exhaust a mathematical verifier; none of them answers 7."""

MEGABYTE = 1_000_000
NESTED = r"\frac{1}{1+" * 35 + "x" + "}" * 35

BOXED = {  # what stands in the box
    "tower of 9s": "9^{9^{9^{9}}}",
    "tower with a log": r"\log_{3}(9^{9^{9^{9}}})",
    "sine of a tower": r"\sin(9^{9^{9^{9}}})",
    "root of a tower": r"\sqrt{9^{9^{9}}}",
    "difference of towers": "9^{9^{9}} - 9^{9^{9}} + 8",
    "power of a billion": "7^{1000000000}",
    "negative tower": "2^{-9^{9^{9}}}",
    "tower of decimals": "1.0000001^{9^{9^{9}}}",
    "tower of exponentials": "e^{e^{e^{e^{e^{e}}}}}",
    "complex tower": "i^{i^{i^{9^{9^{9}}}}}",
    "root of a huge degree": r"\sqrt[10^{9}]{2^{10^{9}} + 1}",
    "remainder of a tower": r"9^{9^{9^{9}}} \bmod 10",
    "floor of a tower": r"\lfloor \pi \cdot 9^{9^{9}} \rfloor",
    "absolute tower": r"|9^{9^{9}}|",
    "factorial of a billion": "1000000000!",
    "three factorials": "((9!)!)!",
    "sixty factorials": "9" + "!" * 60,
    "factorial of a power": "(10^{7})!",
    "binomial": r"\binom{1000000000}{500000000}",
    "binomial of powers": r"\binom{10^{20}}{10^{10}}",
    "sum to a trillion": r"\sum_{k=1}^{10^{12}} \frac{1}{k^{1/3}}",
    "sum without end": r"\sum_{k=1}^{\infty} \sin(k^{k})",
    "double sum": r"\sum_{i=1}^{10^{5}} \sum_{j=1}^{10^{5}} \frac{1}{i^2+j^3}",
    "product to a billion": r"\prod_{k=1}^{10^{9}} (k^2+1)",
    "integral of exponentials": r"\int_{0}^{1} e^{e^{e^{x}}} dx",
    "integral of powers": r"\int_{0}^{\infty} x^{x^{x}} \sin(x^{5}) dx",
    "integral without bounds": r"\int \frac{\sin(x^3) \log(x+1)}{\sqrt{x^5+7x+1}} dx",
    "limit": r"\lim_{x \to 0} \frac{\sin(\tan x) - \tan(\sin x)}{x^{77}}",
    "derivative": r"\frac{d}{dx} x^{x^{x^{x^{x^{x}}}}}",
    "expansion": "(x+y+z+w)^{2000} - (x+y+z+w)^{1999}(x+y+z+w) + 8",
    "roots of a polynomial": "x^{99} + 3x^{98} - 17x^{37} + x - 5 = 0",
    "system of inequalities": "x^{51} + x^{7} - 3 < 0",
    "matrix power": r"\begin{pmatrix} 1 & x \\ y & 1 \end{pmatrix}^{10^{6}}",
    "nested fractions": NESTED,
    "nested roots": r"\sqrt{1+" * 50 + "x" + "}" * 50,
    "nested radicals of numbers": r"\sqrt{2+" * 50 + "2" + "}" * 50,
    "nested parentheses": "(" * 240 + "7" + ")" * 240,
    "nested braces": "{" * 240 + "7" + "}" * 240,
    "nested sets": r"\{" * 100 + "7" + r"\}" * 100,
    "trigonometric sum": "+".join(rf"\sin^{{{i}}}{i}x" for i in range(2, 40)),
    "signs": "-" * 450 + "7",
    "powers without braces": "2" + "^2" * 200,
    "huge exponent of a float": "1.5e999999999",
    "digits": "7" * 500,
    "zero to nothing": "0/0 + 0^{0} + 1/0",
    "commas": "1," * 240,
    "not a number": "NaN",
}
UNBOXED = {  # the whole response
    "a megabyte of digits": "9" * MEGABYTE,
    "a megabyte of spaces": " " * MEGABYTE,
    "a megabyte of boxes": r"\boxed{" * (MEGABYTE // 7),
    "a megabyte of closed boxes": r"\boxed{8}" * (MEGABYTE // 9),
    "a megabyte of braces": "{" * (MEGABYTE // 2) + "}" * (MEGABYTE // 2),
    "a megabyte in a box": r"\boxed{" + "8" * (MEGABYTE - 8) + "}",
    "two megabytes": "8" * 2 * MEGABYTE,
    "dollars": "$" * 4000,
    "open formulas": r"\( \[ $ " * 500,
    "answer is": "the final answer is " * 200,
    "fractions": r"\frac{1}{" * 400,
    "equals": "=1" * 2000,
    "nested fractions in a formula": "$" + r"\frac{1}{1+" * 300 + "x" + "}" * 300 + "$",
    "terms in a formula": "$" + "1+" * 2000 + "1$",
    "tower in plain text": "The answer is 9^9^9^9.",
    "tower in a formula": "so $9^{9^{9^{9}}}$",
    "NUL": "\0\\boxed{\0}",
    "lone surrogates": "\ud800\\boxed{\udfff}\ud800",
    "digits of other scripts": r"\boxed{" + "٧７߇" * 50 + "}",
    "marks without end": "\\boxed{8" + "\u0338" * 400 + "}",
    "right to left": "\u202e\\boxed{8\u202d}",
}
HOSTILE = {name: rf"\boxed{{{box}}}" for name, box in BOXED.items()} | UNBOXED
# what takes a second or more, mostly all that it is given
SLOW = """
tower of 9s
tower with a log
sine of a tower
root of a tower
difference of towers
power of a billion
negative tower
tower of decimals
tower of exponentials
complex tower
root of a huge degree
floor of a tower
absolute tower
factorial of a billion
three factorials
sixty factorials
factorial of a power
binomial
binomial of powers
sum to a trillion
sum without end
double sum
product to a billion
integral of exponentials
integral of powers
integral without bounds
limit
nested fractions
nested parentheses
nested braces
nested sets
trigonometric sum
powers without braces
huge exponent of a float
nested fractions in a formula
tower in a formula
""".strip().split("\n")
