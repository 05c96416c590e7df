"""nccl4py's communicator as NeMo-RL uses it, over gloo."""

import socket
from datetime import timedelta
from typing import Any, Self

import torch
import torch.distributed as dist

TIMEOUT = timedelta(seconds=300)
_stores: list[dist.TCPStore] = []  # of the ids that this process gave out, as long as it lives


class UniqueId:
    """128 bytes: `host:port` of the store that the ranks meet at."""

    def __init__(self, address: str) -> None:
        self.address = address

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        return cls(content.rstrip(b"\0").decode())

    @property
    def as_bytes(self) -> bytes:
        return self.address.encode().ljust(128, b"\0")


def get_unique_id() -> UniqueId:
    host = socket.gethostbyname(socket.gethostname())
    store = dist.TCPStore(host, 0, None, is_master=True, wait_for_workers=False)
    _stores.append(store)
    return UniqueId(f"{host}:{store.port}")


class Communicator:
    def __init__(self, group: dist.ProcessGroupGloo) -> None:
        self.group = group

    @classmethod
    def init(cls, nranks: int, rank: int, unique_id: UniqueId) -> Self:
        host, port = unique_id.address.split(":")
        store = dist.TCPStore(host, int(port), None, is_master=False, wait_for_workers=False)
        return cls(dist.ProcessGroupGloo(store, rank, nranks, TIMEOUT))

    def broadcast(self, sendbuf: torch.Tensor, recvbuf: Any, root: int, stream: int) -> None:
        options = dist.BroadcastOptions()
        options.rootRank = root
        self.group.broadcast([sendbuf], options).wait()
