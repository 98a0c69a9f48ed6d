"""Kills a training job in the middle of a save, again and again, and shows that every restart has the bits that were saved.

A GPT trains on four ranks (FSDP2) and saves its whole state at every step. It is killed, resumed on two ranks, killed, resumed on a mesh of
two by two (FSDP2 and tensor parallelism), rolled back there, killed once more, and resumed on four ranks. A digest of the full state, which
does not depend on the mesh, is taken at every save and after every restore.
"""

import argparse
import shutil
import statistics
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from launch import Event, Job, JobFailedError

SCRIPT = Path(__file__).with_name("train_gpt.py")


@dataclass
class Restart:
    """One restore, and what is known of the save that it goes back to."""

    what: str
    where: str
    restored: Event
    saved: Event
    next_loss: float
    acknowledged: int
    begun: int

    def right(self) -> bool:
        """The bits are those saved, and the step is none older than what was acknowledged."""
        step = self.restored["step"]
        return self.saved["digest"] == self.restored["digest"] and self.acknowledged <= step <= self.begun


@dataclass
class Story:
    """What the jobs on one root have told so far."""

    folder: Path
    console: Console
    restarts: list[Restart] = field(default_factory=list)
    saves: list[Event] = field(default_factory=list)
    peer_saves: list[Event] = field(default_factory=list)
    saved: dict[int, Event] = field(default_factory=dict)  # by step, as the newest line has it
    acknowledged: int = -1
    begun: int = -1
    ending: str = ""
    parameters: int = 0

    def run(self, mesh: str, ranks: int, *, kill_after: int | None, extra: list[str]) -> None:
        """Runs one job; kills it in the save of its `kill_after`-th step after a roll-back or start, or lets it end."""
        report = self.folder / f"{len(list(self.folder.glob('*.jsonl')))}.jsonl"
        steps = 1000 if kill_after else self.begun + 3
        arguments = [
            "--root",
            str(self.folder / "root"),
            "--mesh",
            mesh,
            "--report",
            str(report),
            "--steps",
            str(steps),
            "--digest",
            *extra,
        ]
        self.console.print(f"[bold]{mesh}[/bold] on {ranks} ranks: running", highlight=False)
        job = Job(ranks, SCRIPT, arguments, report)
        try:
            if kill_after is None:
                events = job.wait()
            else:
                job.wait_for(lambda events: saves_since_last_roll_back(events, bool(extra)) >= kill_after)
                job.kill()
                events = job.events()
        finally:
            job.kill()
        self.read(events, mesh)
        if kill_after is not None:
            in_flight = "its save in flight" if self.begun > self.acknowledged else "its save just committed"
            self.ending = f"killed at step {self.begun}, {in_flight}"
            self.console.print(f"  {self.ending}", highlight=False)

    def read(self, events: list[Event], mesh: str) -> None:
        """Takes over what one job has told."""
        for at, event in enumerate(events):
            if event["event"] == "restored":
                what = "rolled back" if event["rollback"] else self.ending
                low, high = (event["step"], event["step"]) if event["rollback"] else (self.acknowledged, self.begun)
                losses = [later["loss"] for later in events[at:] if later["event"] == "step"]
                self.restarts.append(Restart(what, mesh, event, self.saved[event["step"]], losses[0], low, high))
                self.acknowledged = self.begun = event["step"]
            elif event["event"] == "step":
                self.saved[event["step"]] = event
            elif event["event"] == "saving":
                self.begun = event["step"]
            elif event["event"] == "committed":
                self.acknowledged = event["step"]
                self.saves.append({**event, "mesh": mesh})
            elif event["event"] == "peer":
                self.peer_saves.append(event)
            elif event["event"] == "start":
                self.parameters = event["parameters"]

    def all_right(self) -> bool:
        return len(self.restarts) == 4 and all(restart.right() for restart in self.restarts)


def saves_since_last_roll_back(events: list[Event], must_roll_back: bool) -> int:
    """Saves begun since the job rolled back, or since it started where it is not meant to."""
    rolled = [at for at, event in enumerate(events) if event["event"] == "restored" and event["rollback"]]
    if must_roll_back and not rolled:
        return 0
    return sum(event["event"] == "saving" for event in events[rolled[-1] if rolled else 0 :])


def restart_table(restarts: list[Restart]) -> Table:
    table = Table(title="Every restart", title_justify="left")
    for name in ("what happened", "resumed on", "at step", "digest when saved", "digest when restored", "same", "loss then", "loss after"):
        table.add_column(name, overflow="fold")
    for one in restarts:
        table.add_row(
            one.what,
            one.where,
            str(one.restored["step"]),
            one.saved["digest"],
            one.restored["digest"],
            "yes" if one.right() else "NO",
            f"{one.saved['loss']:.4f}",
            f"{one.next_loss:.4f}",
        )
    return table


def cost_table(story: Story) -> Table:
    table = Table(title="What a save costs (medians)", title_justify="left")
    for name in ("", "mesh", "saves", "save() holds, s", "durable after, s", "MB written"):
        table.add_column(name)
    for mesh in dict.fromkeys(save["mesh"] for save in story.saves):
        saves = [save for save in story.saves if save["mesh"] == mesh]
        figures = [statistics.median(save[key] for save in saves) for key in ("hold_s", "durable_s", "written_bytes")]
        table.add_row("Lamina", mesh, str(len(saves)), f"{figures[0]:.3f}", f"{figures[1]:.3f}", f"{figures[2] / 1e6:.0f}")
    hold, durable = (statistics.median(save[key] for save in story.peer_saves) for key in ("hold_s", "durable_s"))
    written = story.peer_saves[-1]["written_bytes"] / 1e6
    table.add_row("DCP async_save", "dp=4", str(len(story.peer_saves)), f"{hold:.3f}", f"{durable:.3f}", f"{written:.0f}")
    return table


def tell(story: Story, console: Console) -> None:
    console.print()
    console.print(restart_table(story.restarts))
    console.print(cost_table(story))
    console.print(f"state: {story.parameters:,} parameters with AdamW, {story.parameters * 12 / 1e6:.0f} MB; ranks share this machine")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=None, help="work here and keep it (default: a temporary folder)")
    folder = parser.parse_args().folder
    work = folder or Path(tempfile.mkdtemp(prefix="lamina-demo-"))
    work.mkdir(parents=True, exist_ok=True)
    console = Console(width=None if sys.stdout.isatty() else 150)
    story = Story(work, console)
    try:
        story.run("dp=4", 4, kill_after=8, extra=[])
        story.run("dp=2", 2, kill_after=5, extra=[])
        story.run("dp=2,tp=2", 4, kill_after=4, extra=["--roll-back", "10", "--roll-back-after", "2"])
        story.run("dp=4", 4, kill_after=None, extra=["--peer-root", str(work / "peer")])
    except JobFailedError as error:
        console.print(f"the demo stopped: {error}", markup=False, highlight=False)
        return 1
    finally:
        if folder is None:
            shutil.rmtree(work, ignore_errors=True)
    tell(story, console)
    right = story.all_right()
    print("all digests matched" if right else "DIGESTS OR STEPS DO NOT MATCH")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
