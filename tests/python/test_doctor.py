"""lamina.preflight and lamina doctor: each check both ways, as text, as JSON and on several ranks."""

import dataclasses
import errno
import json
import os
import subprocess
import sys
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from on_ranks import on_ranks

import lamina
from lamina import checks, cli, doctor, machine
from lamina.findings import Finding, Preflight, RankFindings, merged, table

MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,errors=remount-ro
30 22 0:30 / /mnt/my\\040disk rw - xfs /dev/sdb1 rw,attr2
31 22 0:31 / /mnt/soft rw,relatime - nfs4 server:/export rw,vers=4.2,soft,proto=tcp
32 22 0:32 / /mnt/hard rw,relatime - nfs4 server:/export rw,vers=4.2,hard,proto=tcp
33 22 0:33 / /mnt/noac rw,noac - nfs server:/export rw,vers=3,hard
34 22 0:34 / /mnt/memory rw - tmpfs tmpfs rw,size=1024k
35 22 0:35 / /mnt/layer rw - overlay overlay rw,lowerdir=/a
36 22 0:36 / /mnt/fuse rw - fuse.s3fs s3fs rw
37 22 0:37 / /mnt/stick rw - vfat /dev/sdc1 rw
38 22 0:38 / /mnt/brave rw - ext4 /dev/sdd1 rw,nobarrier
39 31 0:39 / /mnt/soft rw - xfs /dev/sde1 rw
40 22 0:40 / /mnt/softer rw - nfs4 server:/export rw,softerr
"""


@pytest.mark.parametrize(
    ("path", "level", "part"),
    [
        ("/home/me", "ok", "ext4 at / from /dev/sda1"),
        ("/mnt/my disk/run", "ok", "xfs at /mnt/my disk"),
        ("/mnt/hard/run", "ok", "nfs4 at /mnt/hard from server:/export, hard, proto=tcp, vers=4.2"),
        ("/mnt/soft", "ok", "xfs at /mnt/soft"),  # mounted over the other one
        ("/mnt/softer", "warn", "mount it with 'hard'"),
        ("/mnt/noac/run", "warn", "without 'noac'"),
        ("/mnt/memory/run", "warn", "gone at the next boot"),
        ("/mnt/layer", "warn", "mount a volume"),
        ("/mnt/fuse/run", "warn", "whether fsync and link are what POSIX says"),
        ("/mnt/stick", "warn", "hard links"),
        ("/mnt/brave", "warn", "power cut"),
    ],
)
def test_file_systems(path: str, level: str, part: str) -> None:
    found = machine.file_system(machine.mount_of(path, MOUNTS))
    assert (found.level, part in str(found)) == (level, True), found


def test_a_file_system_that_is_not_known() -> None:
    assert machine.file_system(machine.mount_of("/x", "garbage\n")).level == "ok"


MB = 1 << 20


@pytest.mark.parametrize(
    ("finding", "level", "part"),
    [
        (machine.memlock(-1, MB), "ok", "no limit"),
        (machine.memlock(2 * MB, MB), "ok", "2.1 MB may be locked"),
        (machine.memlock(MB, 2 * MB), "ok", "the window takes more"),
        (machine.shared_memory(1000 * MB, 900 * MB), "ok", "943.7 MB free"),
        (machine.shared_memory(64 * MB, 64 * MB), "warn", "--shm-size"),
        (machine.shared_memory(None, 0), "warn", "not there"),
        (machine.open_files(1024, 4096, 10, 8), "ok", "1024 allowed"),
        (machine.open_files(-1, -1, 10, 8), "ok", "no limit"),
        (machine.open_files(1024, 65536, 10, 1000), "warn", "ulimit -n 2074"),
        (machine.open_files(1024, 1024, 10, 1000), "warn", "hard limit"),
        (machine.io_uring(0, "0"), "ok", "works here"),
        (machine.io_uring(errno.ENOSYS, ""), "ok", "ENOSYS"),
        (machine.io_uring(errno.EPERM, ""), "ok", "seccomp"),
        (machine.io_uring(errno.EPERM, "2"), "ok", "kernel.io_uring_disabled = 2"),
        (machine.quota(None, MB), "ok", "none that can be seen"),
        (machine.quota(machine.Quota(5 * MB, 0), MB), "ok", "5.2 MB used"),
        (machine.quota(machine.Quota(5 * MB, 9 * MB), MB), "ok", "4.2 MB left"),
        (machine.quota(machine.Quota(7 * MB, 9 * MB), MB), "warn", "have the quota raised"),
        (machine.quota(machine.Quota(9 * MB, 9 * MB), MB), "fail", "0 B left"),
        (doctor.cuda("", [], {}), "ok", "no device"),
        (
            doctor.cuda("NVRM version: 570.86.15  Fri", ["/dev/nvidia0"], {"CUDA_VISIBLE_DEVICES": ""}),
            "ok",
            "1 device(s), driver 570.86.15",
        ),
        (doctor.cuda("NVRM version: 570.86.15", [], {}), "warn", "--gpus"),
    ],
)
def test_what_a_machine_has(finding: Finding, level: str, part: str) -> None:
    assert (finding.level, part in str(finding)) == (level, True), finding


def test_files_that_no_page_cache_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.direct_io(str(tmp_path)).level == "ok"
    assert "ENOENT" in machine.direct_io(str(tmp_path / "nowhere")).found

    def refuse(*_: Any) -> int:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "open", refuse)
    assert "not here (EINVAL)" in machine.direct_io(str(tmp_path)).found
    assert not any(tmp_path.iterdir())


def test_variables_that_lamina_reads() -> None:
    known, odd = doctor.environment({"LAMINA_IO_THREADS": "4", "LAMINA_IO_THREDS": "4", "HOME": "/"})
    assert (known.level, odd.level) == ("ok", "warn")
    assert odd.advice == "did you mean LAMINA_IO_THREADS?"
    assert doctor.environment({})[0].found == "no LAMINA_ variable is set"


STATE: Mapping[str, Any] = {
    "format_version": 0,
    "store_id": "ab",
    "record": 9,
    "incarnation": 7,
    "host": "node1",
    "pid": 42,
    "run_id": "job",
    "holder": "alive",
    "lease_age_s": 3.0,
    "step": 100,
    "state_bytes": 5_000_000,
    "line_count": 4,
    "damaged": 0,
    "readers": [],
    "leftovers": [],
}


@pytest.mark.parametrize(
    ("check", "changes", "level", "part"),
    [
        (doctor.holder, {}, "ok", "incarnation 7 on node1, pid 42, run job, seen 3 s ago: another job is refused"),
        (doctor.holder, {"lease_age_s": None}, "ok", "nobody"),
        (doctor.holder, {"incarnation": 0}, "ok", "no job has claimed it"),
        (doctor.holder, {"holder": "dead"}, "warn", "takes over at once"),
        (doctor.holder, {"lease_age_s": 300.0, "holder": "unknown"}, "warn", "takes over at once"),
        (doctor.holder, {"lease_age_s": 300.0}, "warn", "its process still runs"),
        (doctor.damaged_record, {}, "ok", "record 9 is sound"),
        (doctor.damaged_record, {"damaged": 8}, "fail", "record 8 is damaged in both copies"),
        (doctor.readers, {}, "ok", "none"),
        (doctor.readers, {"readers": [("readers/a", 5.0), ("readers/b", 500.0)]}, "ok", "1 at work, 1 gone"),
        (doctor.leftovers, {}, "ok", "none"),
        (doctor.leftovers, {"leftovers": [("/r/.tmp-1", 5.0)]}, "ok", "1 hidden files"),
        (doctor.steps, {}, "ok", "newest 100 of 4, 5.0 MB"),
        (doctor.steps, {"step": None}, "ok", "none yet"),
    ],
)
def test_how_a_root_stands(check: Callable[..., Finding], changes: dict[str, Any], level: str, part: str) -> None:
    found = check({**STATE, **changes}, *(["/r"] if check in (doctor.damaged_record, doctor.steps) else []))
    assert (found.level, part in str(found)) == (level, True), found


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = cli.main(["doctor", *arguments])
    out = capsys.readouterr()
    return code, out.out + out.err


def levels(found: Preflight) -> dict[str, str]:
    return {finding.name: finding.level for finding in reversed(found.findings)}  # of several of one name the worst


def test_a_root_with_a_job_and_without(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "root"
    code, text = run(capsys, str(root), "--bytes", "4e6")
    assert code == 0
    assert "holds no store yet" in text
    assert "about" in next(line for line in text.splitlines() if "durable " in line)
    assert list(tmp_path.iterdir()) == []
    with lamina.Checkpointer(root) as ckpt:
        ckpt.save(3, {"w": torch.ones(1000)}).wait()
        code, text = run(capsys, str(root))
        assert (code, "seen 0 s ago" in text, "newest 3 of 1" in text) == (0, True, True), text
    code, text = run(capsys, str(root))
    assert (code, "nobody: incarnation 1" in text) == (0, True), text
    before = sorted(path for path in root.rglob("*"))
    run(capsys, str(root), "--json")
    assert sorted(root.rglob("*")) == before


def test_failures_come_first_and_make_the_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = run(capsys, str(tmp_path / "no" / "parent"))
    assert code == 1
    assert text.startswith("FAIL  root")
    assert "is its file system mounted?" in text.splitlines()[0]
    code, text = run(capsys, str(tmp_path), "--bytes", "1e18")
    assert code == 1
    assert {line.split()[1] for line in text.splitlines() if line.startswith("FAIL")} >= {"space", "memory"}
    found = json.loads(run(capsys, str(tmp_path), "--bytes", "1e18", "--json")[1])
    assert (found["ok"], found["findings"][0]["level"]) == (False, "fail")
    assert set(found["findings"][0]) == {field.name for field in dataclasses.fields(Finding)}


def test_files_that_nothing_needs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "root"
    for step in (1, 2):
        with lamina.Checkpointer(root, run_id="same") as ckpt:
            ckpt.restore({"w": torch.ones(4)})
            ckpt.save(step, {"w": torch.ones(4)}).wait()
    assert "unneeded       no file" in run(capsys, str(root))[1]
    killed = root / "steps/000000000009/1-9"  # as the first job would have left it
    killed.mkdir(parents=True)
    (killed / "00000.pack").write_bytes(bytes(5000))
    (killed / "notes").write_bytes(b"not ours")
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    code, text = run(capsys, str(root))
    assert (code, f"1 files, 5.0 kB, that nothing needs; lamina gc {root} removes them" in text) == (0, True), text
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before
    assert cli.main(["gc", str(root)]) == 0
    assert [path.name for path in killed.iterdir()] == ["notes"]
    capsys.readouterr()
    assert "unneeded       no file" in run(capsys, str(root))[1]
    assert cli.main(["gc", f"{root}@1"]) == 0
    capsys.readouterr()
    text = run(capsys, str(root))[1]
    assert "1 dropped steps" in text
    assert "that stay for readers" in text


@pytest.mark.damages_roots
def test_damaged_roots(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "root"
    with lamina.Checkpointer(root) as ckpt:
        ckpt.save(1, {"w": torch.ones(4)}).wait()
    newest = max((root / "log").iterdir())
    newest.write_bytes(b"x" * newest.stat().st_size)
    code, text = run(capsys, str(root))
    assert (code, "damaged in both copies" in text) == (1, True), text
    (root / "LAMINA").write_bytes(b"x")
    code, text = run(capsys, str(root))
    assert (code, "FAIL  store" in text) == (1, True), text


def test_wrong_values_in_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("LAMINA_IO_THREADS", "many")
    code, text = run(capsys, str(tmp_path))
    assert (code, "FAIL  environment  LAMINA_IO_THREADS" in text, "file-system" in text) == (1, True, True), text


@pytest.mark.parametrize("arguments", [["--bytes", "0"], ["--bytes", "x"], ["a", "b"]])
def test_wrong_use(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, *arguments)[0] == 2


def test_without_pytorch(tmp_path: Path) -> None:
    program = (
        "import sys; from lamina import cli; code = cli.main(['doctor', sys.argv[1]]); "
        "assert not [name for name in sys.modules if name.split('.')[0] == 'torch']; sys.exit(code)"
    )
    environment = {"PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, timeout=60, env=environment, stdout=subprocess.DEVNULL)


def test_the_text_names_one_finding_a_line() -> None:
    found = Preflight((Finding("b", "ok", "fine", "not shown"), Finding("long-name", "fail", "bad", "good", "mend it")))
    assert str(found) == "FAIL  long-name  bad; expected good; mend it\nok    b          fine"
    assert not found.ok
    assert table([]) == ""


def on(rank: int, host: str, *findings: Finding) -> RankFindings:
    return RankFindings(rank, host, findings)


def test_findings_of_several_ranks() -> None:
    same = Finding("shm", "ok", "x")
    assert merged([on(0, "a", same), on(1, "b", same)]) == (same,)
    differ = merged([on(0, "a", same), on(1, "b", Finding("shm", "warn", "small", "more", "do")), on(2, "b", same)])
    assert [(each.level, each.found) for each in differ] == [("warn", "small (rank 1 on b)")]
    figures = [on(rank, "a", Finding("hold", "ok", f"{rank} s", badness=float(rank))) for rank in range(3)]
    assert merged(figures)[0].found == "2 s (rank 2 on a)"
    told = merged([on(0, "a", same), on(1, "b", Finding("shm", "ok", "y")), on(2, "c", same)])
    assert (told[0].level, told[0].found) == ("ok", "x (ranks 0, 2 on a, c); y (rank 1 on b)")
    versions = merged([on(0, "a", Finding("versions", "ok", "1")), on(1, "b", Finding("versions", "ok", "2"))])
    assert (versions[0].level, versions[0].expected) == ("warn", "the same on all ranks")
    many = [on(rank, "a", Finding("root", "fail" if rank else "ok", "text")) for rank in range(30)]
    assert "15, 16 and 13 more on a" in merged(many)[0].found


def test_a_state_gives_the_size(tmp_path: Path) -> None:
    found = lamina.preflight(tmp_path / "root", {"w": torch.zeros(1_000_000)})
    assert found.ok, found
    assert "state          4.0 MB a save" in str(found)
    assert list(tmp_path.iterdir()) == []
    assert levels(lamina.preflight(tmp_path / "root", {"w": torch.zeros(1_000_000)}, memory=1_000_000))["memory"] == "fail"
    assert levels(lamina.preflight(tmp_path / "root", {"w": object()}))["state"] == "fail"
    kept = lamina.preflight(tmp_path / "root", {"w": torch.zeros(1_000_000)}, keep=2**31 - 1)
    assert levels(kept)["space"] == "warn"
    assert "the 2147483647 that keep leaves" in str(kept)
    with pytest.raises(lamina.InvalidArgumentError, match="keep is 0"):
        lamina.preflight(tmp_path, keep=0)
    with pytest.raises(lamina.InvalidArgumentError, match="unknown option"):
        lamina.preflight(tmp_path, options={"io_thread": 1})


class Raises:
    def state_dict(self) -> Any:
        raise KeyError("pos")

    def load_state_dict(self, state: Any) -> None: ...


def _preflights(shared: str, torn: str) -> dict[str, dict[str, Any]]:
    checks._SEEN_WITHIN_S = 0.2  # type: ignore[misc]
    rank = int(os.environ["RANK"])
    parts = {"w": torch.zeros(300_000 if rank else 100_000)}
    found = {
        "alike": lamina.preflight(shared, {"w": torch.zeros(300_000)}),
        "unlike": lamina.preflight(shared, parts),
        "refused": lamina.preflight(shared, {"w": object()} if rank == 1 else parts),
        "raised": lamina.preflight(shared, {"w": Raises()} if rank == 1 else parts),
        "torn": lamina.preflight(f"{torn}/{min(rank, 1)}/root"),
        "missing": lamina.preflight(f"{torn}/{rank}/root"),
    }
    with pytest.raises(lamina.InvalidArgumentError, match="option io_threads is '65'"):
        lamina.preflight(shared, options={"io_threads": 65} if rank == 1 else None)
    checks.socket = types.SimpleNamespace(gethostname=lambda: f"host{rank}")  # type: ignore[assignment]
    found["machines"] = lamina.preflight(f"{torn}/{min(rank, 1)}/root")
    return {
        name: {"levels": levels(each), "found": {finding.name: finding.found for finding in reversed(each.findings)}}
        for name, each in found.items()
    }


def test_preflight_on_ranks(tmp_path: Path) -> None:
    shared, torn = tmp_path / "shared", tmp_path / "torn"
    for folder in (shared, torn / "0", torn / "1"):
        folder.mkdir(parents=True)
    told = on_ranks(3, _preflights, str(shared / "root"), str(torn))
    assert told[0] == told[1] == told[2]
    cases = told[0]
    assert cases["alike"]["levels"].pop("file-system") in {"ok", "warn"}  # where the tests' files lie in memory, it warns
    assert set(cases["alike"]["levels"].values()) == {"ok"}, cases["alike"]
    assert cases["alike"]["found"]["state"] == "1.2 MB a save, 1.2 MB at most by one rank"
    assert cases["alike"]["found"]["shared-path"] == "what rank 0 writes is seen by all"
    assert cases["unlike"]["levels"]["state"] == "fail"
    assert "rank" in cases["unlike"]["found"]["state"]
    assert cases["refused"]["levels"]["state"] == "fail"
    assert "(rank 1 on " in cases["refused"]["found"]["state"]
    assert cases["raised"]["levels"]["state"] == "fail"
    assert "KeyError: 'pos' (rank 1 on " in cases["raised"]["found"]["state"]
    assert "what rank 1, 2 writes is not seen (rank 0 on host0)" in cases["machines"]["found"]["shared-path"]
    assert cases["torn"]["levels"]["shared-path"] == "fail"
    assert cases["torn"]["found"]["shared-path"].startswith("what rank 0 writes is not seen (ranks 1, 2 on ")
    assert cases["missing"]["levels"]["shared-path"] == "fail"
    assert cases["missing"]["levels"]["root"] == "fail"
    assert "(rank 2 on " in cases["missing"]["found"]["root"]
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
