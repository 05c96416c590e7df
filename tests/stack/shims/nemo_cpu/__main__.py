"""The shims as a table: name, what it replaces, reason. For the docs."""

from nemo_cpu import SHIMS, absent

for shim in SHIMS.values():
    print(f"| `{shim.name}` | {', '.join(f'`{x}`' for x in shim.lines())} | {shim.reason} |")
for name, reason in absent.MODULES.items():
    print(f"| `{name}` | | {reason} |")
