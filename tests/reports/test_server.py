"""A live report answers whoever has its token, on this machine, and nobody else; and it follows what is written."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time

import pytest
from report_inputs import serving

from fedjax_dp import errors
from fedjax_dp.reports import kinds
from fedjax_dp.reports.page import payload
from fedjax_dp.reports.server import HOST, ReportServer


def ask(server, path, method="GET", **headers):
    """Status, headers and body, of exactly this path."""
    connection = http.client.HTTPConnection(HOST, server.server_port, timeout=20)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, dict(answer.getheaders()), body


def news(server):
    status, _, body = ask(server, f"/data?token={server.token}")
    assert status == 200
    return json.loads(body)


@pytest.fixture
def server(audit_file):
    with serving(audit_file) as made:
        yield made


def test_the_page_and_its_data_are_there_for_whoever_has_the_token(server, audit_file):
    status, headers, body = ask(server, f"/?token={server.token}")
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert "connect-src 'self'" in body
    assert news(server) == json.loads(json.dumps(payload(kinds.read_report(audit_file))))
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cache-Control"] == "no-store"
    assert server.token not in body


def test_without_the_token_nothing_is_told(server):
    wrong = ["/", "/data", "/?token=", "/?token=wrong", f"/?token={server.token[:-1]}", f"/data?token={server.token}x"]
    wrong += [f"/?token=x&token={server.token}", f"/?Token={server.token}", "/?token=%ff%00", f"/{server.token}"]
    for path in wrong:
        status, _, body = ask(server, path)
        assert status == 403, path
        assert "epsilon" not in body
    with ReportServer(server.followed.path, 0) as other:
        assert other.token != server.token
        assert len(other.token) == 43  # 256 bits


@pytest.mark.parametrize(
    "path",
    [
        "/../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/..%2f..%2fetc%2fpasswd",
        "/audit.json",
        "/data/../audit.json",
        "//etc/passwd",
        "/etc/passwd",
        "/data/",
        "/%2e%2e/",
        "/./",
        "/index.html",
    ],
)
def test_no_path_leads_to_a_file(server, path):
    status, _, body = ask(server, f"{path}?token={server.token}")
    assert status == 404
    assert "root" not in body
    assert "verdict" not in body
    assert ask(server, path)[0] == 403


def test_a_name_that_leads_here_from_elsewhere_is_refused(server):
    right = f"/?token={server.token}"
    for host in (
        "evil.example",
        f"evil.example:{server.server_port}",
        "127.0.0.1",
        f"127.0.0.1:{server.server_port + 1}",
        "",
    ):
        assert ask(server, right, Host=host)[0] == 403
    assert ask(server, right, Host=f"localhost:{server.server_port}")[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "ODD"])
def test_nothing_can_be_done_but_to_read(server, method):
    status, headers, body = ask(server, f"/?token={server.token}", method)
    assert (status, headers["Allow"]) == (405, "GET, HEAD")
    assert "epsilon" not in body


def test_head_tells_the_length_alone(server):
    status, headers, body = ask(server, f"/data?token={server.token}", "HEAD")
    assert (status, body) == (200, "")
    assert int(headers["Content-Length"]) > 1000


def test_only_this_machine_can_ask(server):
    assert server.server_address[0] == "127.0.0.1"
    with socket.socket() as probe, pytest.raises(ConnectionRefusedError):  # another address of this machine
        probe.connect(("127.0.0.2", server.server_port))


def test_a_port_that_is_taken_is_refused_in_one_line(server, audit_file):
    with pytest.raises(errors.ConfigurationError, match=rf"port must be free, got {server.server_port}; give another"):
        ReportServer(audit_file, server.server_port)


@pytest.mark.slow
def test_what_is_not_there_yet_is_waited_for_and_then_followed(tmp_path, run_folder):
    """The files of a run in the order in which it writes them, and torn ones in between."""
    folder = tmp_path / "later"
    metrics = json.loads((run_folder / "metrics.json").read_text())
    with serving(folder) as server:
        assert news(server)["progress"] == "waiting"
        folder.mkdir()
        assert not news(server)["finished"]
        for name in ("guarantee.json", "run.json", "config.toml"):
            whole = (run_folder / name).read_text()
            (folder / name).write_text(whole[: len(whole) // 2])
            assert not news(server)["finished"]
            (folder / name).write_text(whole)
            assert not news(server)["finished"]
        assert news(server)["progress"] == "round 0 of 6"
        structures = set()
        for count in range(1, len(metrics) + 1):
            (folder / "metrics.json").write_text(json.dumps(metrics[:count])[:-9])
            assert news(server)["progress"] == "waiting"
            (folder / "metrics.json").write_text(json.dumps(metrics[:count]))
            told = news(server)
            assert told["data"]["history"] == metrics[:count]
            assert not told["finished"]
        deadline = time.monotonic() + 60
        while "spent" not in news(server)["data"]:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        structures.add(news(server)["structure"])
        (folder / "result.json").write_text("{")
        assert news(server)["progress"] == "waiting"
        (folder / "result.json").write_text((run_folder / "result.json").read_text())
        assert (news(server)["progress"], news(server)["finished"]) == ("finished", True)


@pytest.mark.slow
def test_more_rounds_do_not_change_the_structure_of_a_page(tmp_path, run_folder):
    """So that a page that is open is renewed in place, and not loaded again."""
    folder = tmp_path / "live"
    folder.mkdir()
    for name in ("guarantee.json", "run.json", "config.toml"):
        (folder / name).write_text((run_folder / name).read_text())
    metrics = json.loads((run_folder / "metrics.json").read_text())
    rows = [{"round": at, "epsilon": 1.0 * at, "epsilon_median": 0.5 * at, "epsilon_min": 0.1} for at in (2, 4, 6)]
    found = set()
    for count in (1, 2, 3):
        (folder / "metrics.json").write_text(json.dumps(metrics[:count]))
        found.add(payload(kinds.read_report(folder, lambda *_: rows))["structure"])
    assert len(found) == 1


def test_a_sweep_is_followed_point_by_point(sweep_folder):
    points = (sweep_folder / "points.jsonl").read_text().splitlines(keepends=True)
    with serving(sweep_folder) as server:
        for count in (0, 20, 59, 60):
            (sweep_folder / "points.jsonl").write_text("".join(points[:count]) + ('{"to' if count < 60 else ""))
            told = news(server)
            settings = told["data"]["settings"]
            assert sum(row["seeds"] + row["lost"] for row in settings) == count
            assert told["finished"] == (count == 60)


def test_the_command_prints_its_address_and_ends_at_an_interrupt(audit_file):
    words = [sys.executable, "-m", "fedjax_dp", "report", str(audit_file), "--serve"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        address = process.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{43}", address)
        while "Ctrl-C" not in process.stderr.readline():
            pass
        os.kill(process.pid, signal.SIGINT)
        rest, told = process.communicate(timeout=20)
    assert (process.returncode, rest) == (0, "")
    assert told.splitlines()[-1] == "ended"
