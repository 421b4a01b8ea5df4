"""Packets that take their time: a device that gives back what it gets, later.

A link is slowed by routing its packets to this device; given back they look like packets that have
just arrived, and go their way. It needs no module of the kernel's traffic control and no /dev: it
is one end of a veth pair, whose other end lies in a namespace that forwards nothing and holds a
packet socket.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import fcntl
import socket
import struct
from collections import deque

_ETH_P_IP = 0x0800
_ETHERNET_BYTES = 14
_SENDER, _RECEIVER = slice(26, 30), slice(30, 34)  # of the IPv4 packet in a frame
_PACKET_OUTGOING = 4
_FRAME_BYTES_MAX = 1 << 16
_READS_MAX = 64
_WAITING_MAX = 100_000  # frames; more are lost, as in a router
_BUFFER_BYTES = 8 << 20
_SIOCETHTOOL = 0x8946
_OFFLOADS = (0x17, 0x19, 0x1F, 0x24)  # ETHTOOL_STXCSUM, _SSG, _STSO, _SGSO

_Link = tuple[str, str]


def make_plain(device: str) -> None:
    """Has the kernel finish the packets that it sends to a device: sizes and checksums."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for command in _OFFLOADS:
            value = array.array("I", [command, 0])
            address, _ = value.buffer_info()
            fcntl.ioctl(any_socket, _SIOCETHTOOL, struct.pack("16sP8x", device.encode(), address))


class Slowness:
    """What the far end of the pair is called, seen from its namespace, and the near one's MAC.

    `delays_s` says for (sender, receiver) how long packets wait; those of others don't.
    """

    def __init__(self, far: str, near_mac: bytes) -> None:
        """To be made where the far end is. Raises OSError."""
        self.delays_s: dict[_Link, float] = {}
        self._near_mac = near_mac
        self._waiting: dict[_Link, deque[tuple[float, bytes]]] = {}
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_IP))
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        self._socket.bind((far, _ETH_P_IP))

    def serve(self) -> None:
        """Begins."""
        asyncio.get_running_loop().add_reader(self._socket, self._take)

    def close(self) -> None:
        """Loses what waits."""
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()
        self._waiting.clear()

    def forget(self) -> None:
        """Nothing is slow any more; what waits goes on at once, in order."""
        self.delays_s.clear()
        for frames in self._waiting.values():
            while frames:
                self._give(frames.popleft()[1])

    def drop(self, link: _Link) -> None:
        """Loses what waits on a link."""
        self._waiting.pop(link, None)

    def _take(self) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(_READS_MAX):
            try:
                frame, address = self._socket.recvfrom(_FRAME_BYTES_MAX)
            except BlockingIOError:
                return
            if address[2] == _PACKET_OUTGOING:
                continue
            link = socket.inet_ntoa(frame[_SENDER]), socket.inet_ntoa(frame[_RECEIVER])
            frames = self._waiting.setdefault(link, deque())
            if len(frames) >= _WAITING_MAX:
                continue
            due_s = loop.time() + self.delays_s.get(link, 0.0)
            frames.append((due_s, frame))
            loop.call_at(due_s, self._release, link)

    def _release(self, link: _Link) -> None:
        now_s = asyncio.get_running_loop().time()
        frames = self._waiting.get(link)
        while frames and frames[0][0] <= now_s:
            self._give(frames.popleft()[1])

    def _give(self, frame: bytes) -> None:
        # A full queue loses packets, as networks do.
        with contextlib.suppress(OSError):
            self._socket.send(self._near_mac + frame[6:])
