"""NeMo Gym's server of tool calls, which says what each turn has earned.

A turn earns RIGHT for the expected call, else ANY for another one. Gym starts it in the folder of
its own `app.py`.
"""

import sys
from pathlib import Path
from typing import Any

RIGHT, ANY = 1.0, 0.25

if __name__ == "__main__":
    sys.path.insert(0, str(Path.cwd()))
    from app import ToolCallMultiRewardResourcesServer, ToolCallMultiRewardVerifyRequest

    class ByTurn(ToolCallMultiRewardResourcesServer):
        """Its components are turn_1, turn_2, ..., and nothing else."""

        async def verify(self, body: ToolCallMultiRewardVerifyRequest) -> Any:
            found = await super().verify(body)
            turns = [0.0]
            heard = False
            for item in body.response.output:
                if item.type == "function_call_output":
                    heard = True
                    continue
                if heard:
                    turns.append(0.0)
                heard = False
                if item.type == "function_call":
                    call = {"name": item.name, "arguments": item.arguments}
                    earned = RIGHT if self._call_matches(call, body.expected_call) else ANY
                    turns[-1] = max(turns[-1], earned)
            found.reward_components = {f"turn_{k + 1}": earned for k, earned in enumerate(turns)}
            found.reward = sum(turns)
            return found

    ByTurn.run_webserver()
