"""The shims as a table: name, what it replaces, reason. For the docs."""

from nemo_cpu import SHIMS, absent

for shim in SHIMS.values():
    try:
        lines = ", ".join(f"`{line}`" for line in shim.lines())
    except LookupError:
        lines = f"NeMo-RL {' and '.join(shim.refs)} only"
    print(f"| `{shim.name}` | {lines} | {shim.reason} |")
for name, reason in absent.MODULES.items():
    print(f"| `{name}` | | {reason} |")
