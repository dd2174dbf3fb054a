"""A report that follows a run or a sweep: a page and its data, on this machine alone, for whoever has the token.

Nothing else is served, and no request names a file: each is for one of two addresses.
"""

import hmac
import http.server
import json
import os
import pathlib
import secrets
import sys
import threading
import urllib.parse
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fedjax_dp import errors
from fedjax_dp.reports import kinds
from fedjax_dp.reports.contents import Prose, Report, Rows, Section
from fedjax_dp.reports.page import page, payload

HOST = "127.0.0.1"
PAGE, DATA = "/", "/data"
PATIENCE_S = 20  # with a browser that does not finish its request
TOKEN_BYTES = 32
PENDING = "it is being computed"
HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


class Followed:
    """What is followed, read again for each request.

    Epsilon by round takes a while, so a thread computes it, once for each plan of a run; until then the page says so.
    """

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._spent: dict[str, Rows | str] = {}  # by the plan: rows, or why they are not known
        self._read: tuple[Any, Report] | None = None  # what was read last, and of what

    def report(self) -> Report:
        """As the files are now. What is not there yet, or half written, is waited for."""
        try:
            stamp = [_stamp(self.path), [*self._spent.values()]]
            if self._read is None or self._read[0] != stamp:
                self._read = stamp, kinds.read_report(self.path, self._spending)
            report = self._read[1]
        except (errors.ConfigurationError, OSError) as error:
            return _waiting(self.path, " ".join(str(error).split()))
        if report.finished and PENDING in self._spent.values():
            return report._replace(finished=False, progress=f"finished; epsilon by round: {PENDING}")
        return report

    def _spending(self, path: pathlib.Path, about: Mapping[str, Any], epsilon: float) -> Rows:
        plan = json.dumps([about.get("seal"), epsilon])
        with self._lock:
            if plan not in self._spent:
                self._spent[plan] = PENDING
                threading.Thread(target=self._compute, args=(plan, path, about, epsilon), daemon=True).start()
            rows = self._spent[plan]
        if isinstance(rows, str):
            raise errors.ConfigurationError(rows)
        return rows

    def _compute(self, plan: str, path: pathlib.Path, about: Mapping[str, Any], epsilon: float) -> None:
        rows: Rows | str = "computing it failed"
        try:
            rows = kinds.epsilon_by_round(path, about, epsilon)
        except errors.ConfigurationError as error:
            rows = str(error)
        finally:
            self._spent[plan] = rows


class ReportServer(http.server.ThreadingHTTPServer):
    """Serves one report at 127.0.0.1; `address` is what a browser is given.

    Raises: ConfigurationError for a port that is taken or not allowed.
    """

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, path: pathlib.Path, port: int) -> None:
        self.followed, self.token = Followed(path), secrets.token_urlsafe(TOKEN_BYTES)
        try:
            super().__init__((HOST, port), _Answer)
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            raise errors.refuse("port", port, "free", f"give another --port, or none ({why})") from None

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.server_port}{PAGE}?token={self.token}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away is nobody's error."""
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class _Answer(http.server.BaseHTTPRequestHandler):
    """Answers a request: the page, its data, or why not."""

    server: ReportServer
    timeout = PATIENCE_S
    server_version, sys_version = "fedjax-dp", ""

    def do_GET(self) -> None:
        try:
            address = urllib.parse.urlsplit(self.path)
        except ValueError:  # what only looks like an address
            self._refuse(HTTPStatus.BAD_REQUEST, "no address")
            return
        if not self._at_home():
            self._refuse(HTTPStatus.FORBIDDEN, "this machine was addressed by another name")
        elif not self._has_token(address.query):
            self._refuse(HTTPStatus.FORBIDDEN, "the token is missing or wrong: use the address that was printed")
        elif address.path == PAGE:
            self._send(page(self.server.followed.report(), live=True), "text/html; charset=utf-8")
        elif address.path == DATA:
            news = json.dumps(payload(self.server.followed.report()), allow_nan=False)
            self._send(news, "application/json")
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "there is nothing here")

    do_HEAD = do_GET

    def _at_home(self) -> bool:
        """Whether the browser means this machine: a page elsewhere may have made a name of its own lead here."""
        port = self.server.server_port
        return self.headers.get_all("Host", []) in ([f"{HOST}:{port}"], [f"localhost:{port}"])

    def _has_token(self, query: str) -> bool:
        tokens = urllib.parse.parse_qs(query).get("token", [""])
        return len(tokens) == 1 and hmac.compare_digest(tokens[0].encode(), self.server.token.encode())

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        self._send(f"{status.value}: {why}\n", "text/plain; charset=utf-8", status)

    def _send(self, content: str, kind: str, status: HTTPStatus = HTTPStatus.OK) -> None:
        body = content.encode("utf-8", "replace")
        self.send_response(status)
        for name, value in (HEADERS | {"Content-Type": kind, "Content-Length": str(len(body))}).items():
            self.send_header(name, value)
        if status is HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET, HEAD")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the library refuses by itself, such as other methods, in our words and with our headers."""
        status = HTTPStatus(code)
        if status is HTTPStatus.NOT_IMPLEMENTED:
            status = HTTPStatus.METHOD_NOT_ALLOWED
        self.close_connection = True
        self._refuse(status, status.phrase.lower())

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: an address in a log would hold the token."""


def _stamp(path: pathlib.Path) -> Any:
    """What changes with the files that a report is read from."""
    files = [path, *path.iterdir()] if path.is_dir() else [path]
    return sorted((str(file), seen.st_mtime_ns, seen.st_size) for file in files if (seen := _stat(file)) is not None)


def _stat(file: pathlib.Path) -> os.stat_result | None:
    """None where the file has just gone, as drafts do."""
    try:
        return file.stat()
    except FileNotFoundError:
        return None


def _waiting(path: pathlib.Path, why: str) -> Report:
    """A report of what is not there yet."""
    blocks = [Prose([f"Nothing can be shown yet: {why}."], "Waiting")]
    return Report(
        "report",
        path.name or "report",
        "Waiting for a run or a sweep",
        [Section("Waiting", blocks)],
        {},
        "waiting",
        False,
    )
