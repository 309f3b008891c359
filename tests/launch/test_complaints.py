from pathlib import Path

from astraflow.launch.complaints import REST_S, Complaints

HEAD = "2026-01-02 03:04:05,678"


def test_new_warnings_and_errors_are_told_once_a_while(tmp_path: Path) -> None:
    path = tmp_path / "dataflow.log"
    path.write_text(f"{HEAD} ERROR   astraflow.x: of an earlier life\n")
    complaints = Complaints(path)
    with path.open("a") as file:
        file.write(f"{HEAD} INFO    astraflow.x: ERROR in name only\n")
        file.write(f"{HEAD} WARNING astraflow.x: 24 leases are over\n{HEAD} WARNING astraflow.x: 7 leases are over\n")
        file.write(f"{HEAD} ERROR   astraflow.x: raas-0 is de")
    assert complaints.read(10.0) == ["24 leases are over"]
    with path.open("a") as file:
        file.write("ad\n")
        file.write(f"{HEAD} WARNING astraflow.x: 8 leases are over\n")
    assert complaints.read(11.0) == ["raas-0 is dead"]
    with path.open("a") as file:
        file.write(f"{HEAD} WARNING astraflow.x: 9 leases are over\n")
    assert complaints.read(10.0 + REST_S) == ["9 leases are over"]
    path.unlink()
    assert complaints.read(100.0) == []


def test_a_log_that_is_not_there_yet(tmp_path: Path) -> None:
    complaints = Complaints(tmp_path / "dataflow.log")
    assert complaints.read(0.0) == []
    (tmp_path / "dataflow.log").write_text(f"{HEAD} WARNING astraflow.x: first\n")
    assert complaints.read(1.0) == ["first"]
