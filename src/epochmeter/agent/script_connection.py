"""The agent's connection to the controller: it wakes the controller at borders of passes, and seldom asks it.

The script records its events without a controller too, so that the end of the controller ends the connection only.
"""

import os
import socket
import struct
import threading
from typing import Any, Optional, Tuple

from epochmeter.agent.frames import pass_on
from epochmeter.agent.notices import notice
from epochmeter.shared.events import NO_CONTROLLER
from epochmeter.shared.protocol import Border, Message, encode
from epochmeter.worker.connection import ControllerConnection, ControllerGoneError

LIMIT_S = 30  # how long the script waits for the controller, which may be stopped (SIGSTOP)
BORDER = encode(Border())
LOST = "{}; the script continues, and the next command of epochmeter after its end records its times"
CLOSED = "the script has closed the connection to the controller"


class ScriptConnection(ControllerConnection):
    """The connection of one process.

    Args:
        path: The controller's socket; None: there is no controller.

    Attributes:
        lost: Why nothing is sent, or no more: there is no controller, it has ended, or neither read nor replied for
            `LIMIT_S`, or the script has closed the connection. Empty before.
    """

    def __init__(self, path: Optional[str], rank: int, is_first: bool) -> None:
        self.lost = "" if path else NO_CONTROLLER
        self._identity: Optional[Tuple[int, int]] = None
        self._requesting, self._is_requesting = threading.RLock(), False
        if path is None:
            return
        try:
            super().__init__(path, rank, is_first)
        except OSError as error:
            self._lose(error)
            return
        self.reply_limit_s = LIMIT_S
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", LIMIT_S, 0))
        self._identity = self._opened_file()

    def send(self, message: Message) -> None:
        """Send a message, unless the connection is lost."""
        if self._identity is not None and not self.is_open():
            self.lost = self.lost or CLOSED
        if self.lost:
            return
        try:
            super().send(message)
        except BlockingIOError:
            self._lose(ControllerGoneError("it read nothing for {} s".format(LIMIT_S)))
        except OSError as error:
            self._lose(error)

    def request(self, message: Message) -> Any:
        """Send a message and return its reply; None if the connection is lost, or within another request.

        The requests of several threads follow each other, as a reply does not name its request. A signal handler may
        make one within another one of its thread.
        """
        with self._requesting:
            if self._is_requesting:
                return None
            self._is_requesting = True
            try:
                self.send(message)
                return None if self.lost else self._reply()
            except (OSError, ControllerGoneError) as error:
                self._lose(error)
                return None
            finally:
                self._is_requesting = False

    def wake(self) -> None:
        """Let the controller read its counters now; never wait."""
        if self.is_open():
            try:
                self._socket.send(BORDER, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            except BlockingIOError as error:  # it does not read, since it is stopped
                pass_on(error)
            except OSError as error:
                self._lose(error)

    def is_open(self) -> bool:
        """Return whether the socket is still the process's own: a script may close all files, and open others."""
        return not self.lost and self._identity is not None and self._opened_file() == self._identity

    def close(self) -> None:
        """Close the connection, if the script has not done so."""
        if self.is_open():
            super().close()

    def release(self) -> None:
        """Close the file that this process, a child, has inherited; the connection stays that of its parent."""
        if self.is_open():
            self._socket.close()
        elif self._identity is not None:
            self._socket.detach()  # the number may be that of another file of the script
        self._identity = None

    def _lose(self, error: BaseException) -> None:
        """Close the connection, and report why; raise an error of the script's own signal handler."""
        pass_on(error)
        self.close()
        self.lost = "the controller is gone: {}".format(error)
        notice(LOST.format(self.lost))

    def _opened_file(self) -> Optional[Tuple[int, int]]:
        try:
            stat = os.fstat(self._socket.fileno())
        except OSError as error:
            pass_on(error)
            return None
        return stat.st_dev, stat.st_ino
