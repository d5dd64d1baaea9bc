"""The courses: each kind of work declared, revoked, moved, failed and stopped."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.scenarios.picture import picture
from tests.scenarios.steps import Steps, virtual_time

Course = Callable[[Steps], None]
COURSES: dict[str, tuple[Course, dict[str, Any]]] = {}
"""By name: the course, and the options of its cluster."""


def recorded(name: str) -> Path:
    """The file with the recorded text of a course."""
    return Path(__file__).parent / "recorded" / f"{name}.txt"


def play(name: str, directory: Path) -> str:
    """The text of a course, which is played in an empty directory."""
    course, options = COURSES[name]
    with virtual_time() as clock:
        steps = Steps(directory, clock, **options)
        try:
            course(steps)
            steps.look("at the end")
            return picture(steps)
        finally:
            steps.close()


def _course(**options: Any) -> Callable[[Course], Course]:
    def add(course: Course) -> Course:
        COURSES[course.__name__] = course, options
        return course

    return add


# Runs


@_course()
def run_declared(steps: Steps) -> None:
    """A run waits for another one, trains, is evaluated and ends; its cluster is deleted."""
    steps.declare_run("run-1", 1000)
    steps.declare_run("run-2", 1000)
    steps.begin("run-1")
    steps.train("run-1", 60.0)
    steps.checkpoint("run-1")
    steps.look("while it trains")
    steps.train("run-1", 80.0)
    steps.evaluate("run-1", 0.94)
    steps.finish("run-1")
    steps.delete()


@_course()
def run_revoked(steps: Steps) -> None:
    """A worker is taken and replaced, then the parameter server is lost."""
    steps.declare_run("run-1")
    steps.begin("run-1")
    steps.train("run-1", 60.0)
    steps.checkpoint("run-1")
    steps.take("worker-1")
    steps.train("run-1", 20.0)
    steps.leave("run-1", "worker-1")
    steps.train("run-1", 20.0)
    steps.look("with one worker")
    steps.train("run-1", 60.0)
    steps.join("run-1")
    steps.train("run-1", 40.0)
    steps.lose("ps-0")
    for worker in ("worker-0", "worker-2"):
        steps.leave("run-1", worker, "lost")
    steps.passes(70.0)
    steps.begin("run-1")
    steps.train("run-1", 40.0)


@_course()
def run_moved(steps: Steps) -> None:
    """The cluster moves to another zone, and the run continues there."""
    steps.declare_run("run-1")
    steps.begin("run-1")
    steps.train("run-1", 60.0)
    steps.move()
    steps.train("run-1", 40.0)
    steps.look("while it moves")
    steps.train("run-1", 40.0)
    steps.passes(20.0)
    steps.begin("run-1")
    steps.train("run-1", 40.0)


@_course()
def run_failed(steps: Steps) -> None:
    """A run fails in its code, and the next one begins."""
    steps.declare_run("run-1")
    steps.declare_run("run-2")
    steps.begin("run-1")
    steps.train("run-1", 40.0)
    steps.fail("run-1", "The loss is not a number since step 240")
    steps.begin("run-2")
    steps.train("run-2", 40.0)


@_course()
def run_stopped(steps: Steps) -> None:
    """A run that trains is stopped, and one that waits."""
    steps.declare_run("run-1")
    steps.declare_run("run-2")
    steps.begin("run-1")
    steps.train("run-1", 60.0)
    steps.stop_run("run-2")
    steps.stop_run("run-1")
    steps.passes(10.0)


def _train_and_save(steps: Steps, minutes: int) -> None:
    for _ in range(minutes):
        steps.train("run-1", 60.0)
        steps.checkpoint("run-1")
        steps.join("run-1")


@_course()
def deadline_declared(steps: Steps) -> None:
    """A run with a deadline has as many workers as are worth their price."""
    steps.declare_run("run-1", 20_000, due=3600.0)
    steps.begin("run-1")
    _train_and_save(steps, 4)
    steps.foresee("run-1", 0.98, 900.0)


@_course()
def deadline_revoked(steps: Steps) -> None:
    """A worker of a run with a deadline is taken, and replaced."""
    steps.declare_run("run-1", 6_000, due=1800.0)
    steps.begin("run-1")
    _train_and_save(steps, 1)
    steps.take("worker-1")
    steps.passes(20.0)
    steps.leave("run-1", "worker-1")
    _train_and_save(steps, 2)


@_course()
def deadline_failed(steps: Steps) -> None:
    """No number of workers reaches the deadline, which is told."""
    steps.declare_run("run-1", 100_000, due=900.0)
    steps.begin("run-1")
    _train_and_save(steps, 2)
    for worker in ("worker-0", "worker-1"):
        steps.leave("run-1", worker, "told to leave")
    _train_and_save(steps, 1)


@_course()
def deadline_stopped(steps: Steps) -> None:
    """It is stopped, and the cluster keeps its Spot workers."""
    steps.declare_run("run-1", 20_000, due=3600.0)
    steps.begin("run-1")
    _train_and_save(steps, 3)
    steps.stop_run("run-1")
    steps.passes(30.0)


# Studies


def _trial(steps: Steps, run: str, accuracy: float) -> None:
    steps.begin(run)
    steps.train(run, 60.0)
    steps.evaluate(run, accuracy)


@_course()
def study_declared(steps: Steps) -> None:
    """A grid of three trials, all of which end."""
    steps.declare_study("study-1", 3)
    for number, accuracy in enumerate((0.81, 0.9)):
        _trial(steps, f"study-1-{number}", accuracy)
    steps.look("with two trials")
    for number, _ in enumerate((0.81, 0.9)):
        steps.finish(f"study-1-{number}")
    _trial(steps, "study-1-2", 0.86)
    steps.finish("study-1-2")
    steps.passes(10.0)


@_course()
def study_revoked(steps: Steps) -> None:
    """The worker of a trial is taken, and the trial continues on its replacement."""
    steps.declare_study("study-1", 3)
    _trial(steps, "study-1-0", 0.81)
    _trial(steps, "study-1-1", 0.9)
    steps.take("worker-1")
    steps.passes(20.0)
    steps.leave("study-1-1", "worker-1")
    steps.look("without a worker")
    steps.passes(60.0)
    steps.begin("study-1-1")
    steps.train("study-1-1", 20.0)


@_course()
def study_moved(steps: Steps) -> None:
    """The cluster moves while two trials train."""
    steps.declare_study("study-1", 3)
    _trial(steps, "study-1-0", 0.81)
    _trial(steps, "study-1-1", 0.9)
    steps.move()
    steps.passes(80.0)
    steps.begin("study-1-0")
    steps.begin("study-1-1")
    steps.train("study-1-0", 20.0)


@_course()
def study_failed(steps: Steps) -> None:
    """A trial fails, the others count."""
    steps.declare_study("study-1", 3)
    _trial(steps, "study-1-0", 0.81)
    steps.fail("study-1-1", "The loss is not a number since step 12")
    steps.finish("study-1-0")
    _trial(steps, "study-1-2", 0.86)
    steps.finish("study-1-2")
    steps.passes(10.0)


@_course()
def study_stopped(steps: Steps) -> None:
    """A study is stopped while two trials train."""
    steps.declare_study("study-1", 4)
    _trial(steps, "study-1-0", 0.81)
    steps.begin("study-1-1")
    steps.finish("study-1-0")
    steps.stop_study("study-1")
    steps.passes(10.0)


# Jobs


@_course(purpose="jobs")
def job_declared(steps: Steps) -> None:
    """One job on both VMs, and one that waits for them; the cluster is deleted while the second one runs."""
    steps.declare_job("job-1", workers=2)
    steps.declare_job("job-2")
    steps.run_command("job-1")
    steps.passes(60.0)
    steps.keep("job-1")
    steps.look("while it runs")
    steps.passes(60.0)
    steps.keep("job-1")
    steps.end_command("job-1")
    steps.run_command("job-2")
    steps.passes(30.0)
    steps.delete()


@_course(purpose="jobs")
def job_revoked(steps: Steps) -> None:
    """The VM of a job is taken, and the job continues on the free one."""
    steps.declare_job("job-1")
    steps.run_command("job-1")
    steps.passes(60.0)
    steps.keep("job-1")
    steps.take("worker-0")
    steps.passes(10.0)
    steps.keep("job-1")
    steps.end_command("job-1", -15, noticed=True)
    steps.run_command("job-1")
    steps.look("on another VM")
    steps.passes(60.0)
    steps.lose("worker-1")
    steps.passes(70.0)
    steps.run_command("job-1")
    steps.passes(30.0)
    steps.end_command("job-1")


@_course(purpose="jobs", controller="cluster")
def job_moved(steps: Steps) -> None:
    """The controller moves to a VM before the job is declared."""
    steps.declare_job("job-1")
    steps.run_command("job-1")
    steps.passes(30.0)
    steps.look("with its controller on a VM")
    steps.end_command("job-1")


@_course(purpose="jobs")
def job_failed(steps: Steps) -> None:
    """A command fails twice, and may be tried again once."""
    steps.declare_job("job-1", retries=1)
    steps.run_command("job-1")
    steps.passes(30.0)
    steps.end_command("job-1", 1, tail="KeyError: 'weights'")
    steps.run_command("job-1")
    steps.look("tried again")
    steps.passes(30.0)
    steps.end_command("job-1", 1, tail="KeyError: 'weights'")


@_course(purpose="jobs")
def job_stopped(steps: Steps) -> None:
    """A job that runs is stopped, and one that waits."""
    steps.declare_job("job-1", workers=2)
    steps.declare_job("job-2")
    steps.run_command("job-1")
    steps.passes(30.0)
    steps.stop_job("job-2")
    steps.stop_job("job-1")
    steps.passes(5.0)
    steps.look("while it ends")
    steps.keep("job-1")
    steps.end_command("job-1", -15, noticed=True)


# Dask clusters


@_course(purpose="jobs")
def dask_declared(steps: Steps) -> None:
    """A Dask cluster begins, and ends as its client does."""
    steps.declare_dask("dask-1", 2)
    steps.serve("dask-1")
    steps.passes(60.0)
    steps.look("while it serves")
    steps.end_scheduler("dask-1", "its client has disconnected")
    steps.passes(20.0)


@_course(purpose="jobs")
def dask_revoked(steps: Steps) -> None:
    """A worker is taken, and another one comes in its place."""
    steps.declare_dask("dask-1", 2)
    steps.serve("dask-1")
    steps.passes(60.0)
    steps.take("worker-1")
    steps.passes(5.0)
    steps.leave_dask("dask-1", "worker-1")
    steps.passes(30.0)
    steps.look("with one worker")
    steps.passes(60.0)


@_course(purpose="jobs", controller="cluster")
def dask_moved(steps: Steps) -> None:
    """The controller moves to a VM before the work is declared."""
    steps.declare_dask("dask-1", 2)
    steps.serve("dask-1")
    steps.passes(60.0)


@_course(purpose="jobs")
def dask_failed(steps: Steps) -> None:
    """The process of a scheduler crashes; of another Dask cluster the scheduler's VM is lost."""
    steps.declare_dask("dask-1", 2)
    steps.serve("dask-1")
    steps.passes(30.0)
    steps.crash_scheduler("dask-1", "it needed more memory than it may have")
    steps.passes(20.0)
    steps.declare_dask("dask-2", 2)
    steps.serve("dask-2")
    steps.passes(30.0)
    steps.lose("ps-0")
    steps.passes(20.0)


@_course(purpose="jobs")
def dask_stopped(steps: Steps) -> None:
    """A Dask cluster is ended by its client."""
    steps.declare_dask("dask-1", 2)
    steps.serve("dask-1")
    steps.passes(30.0)
    steps.stop_dask("dask-1")
    steps.look("while it ends")
    steps.passes(20.0)


# Bags


def _serving_bag(steps: Steps) -> None:
    steps.declare_bag("bag-1", 4)
    steps.serve_bag("bag-1")
    for number in (0, 1):
        steps.start_bag_job("bag-1", number, f"worker-{number}")
    steps.passes(60.0)


@_course(purpose="jobs")
def bag_declared(steps: Steps) -> None:
    """A bag of four jobs, all of which return their results."""
    _serving_bag(steps)
    steps.return_result("bag-1", 0)
    steps.look("with one result")
    steps.return_result("bag-1", 1)
    for number in (2, 3):
        steps.start_bag_job("bag-1", number, f"worker-{number - 2}")
    steps.passes(60.0)
    for number in (2, 3):
        steps.return_result("bag-1", number)
    steps.end_bag("bag-1", "counted")
    steps.passes(70.0)


@_course(purpose="jobs")
def bag_revoked(steps: Steps) -> None:
    """A VM is taken with its job, which begins again on another one; then the driver's VM is lost, and replaced."""
    _serving_bag(steps)
    steps.take("worker-1")
    steps.passes(10.0)
    steps.lose_bag_job("bag-1", 1, "revoked")
    steps.return_result("bag-1", 0)
    steps.start_bag_job("bag-1", 1, "worker-0")
    steps.passes(30.0)
    steps.look("on another VM")
    steps.lose("ps-0")
    steps.passes(100.0)
    steps.serve_bag("bag-1")
    steps.lose_bag_job("bag-1", 1, "lost", "its driver was lost")
    steps.start_bag_job("bag-1", 1, "worker-2")
    steps.passes(60.0)
    steps.return_result("bag-1", 1)


@_course(purpose="jobs", controller="cluster")
def bag_moved(steps: Steps) -> None:
    """The controller moves to a VM before the work is declared."""
    _serving_bag(steps)
    steps.return_result("bag-1", 0)


@_course(purpose="jobs")
def bag_failed(steps: Steps) -> None:
    """Every job fails, so the driver gives the bag up."""
    _serving_bag(steps)
    for number in (0, 1):
        steps.lose_bag_job("bag-1", number, "raised", "ValueError: it did not converge")
    steps.look("with two failures")
    steps.end_bag("bag-1", "failed", "the first 2 jobs failed: ValueError: it did not converge")
    steps.passes(70.0)


@_course(purpose="jobs")
def bag_stopped(steps: Steps) -> None:
    """A bag is stopped while two jobs run."""
    _serving_bag(steps)
    steps.return_result("bag-1", 0)
    steps.stop_bag("bag-1")
    steps.look("while it ends")
    steps.passes(60.0)


# Measures of stalls


def _measuring(steps: Steps) -> None:
    steps.declare_stalls("stalls-1")
    steps.begin("stalls-1")
    steps.measure("stalls-1", 1)


@_course()
def stalls_declared(steps: Steps) -> None:
    """All measures are taken."""
    _measuring(steps)
    steps.look("with one repeat")
    for repeat in (2, 3):
        steps.measure("stalls-1", repeat)
    steps.finish("stalls-1")


@_course()
def stalls_revoked(steps: Steps) -> None:
    """A worker is taken, and the measure continues with the other one."""
    _measuring(steps)
    steps.take("worker-1")
    steps.passes(20.0)
    steps.leave("stalls-1", "worker-1")
    for repeat in (2, 3):
        steps.measure("stalls-1", repeat)
    steps.finish("stalls-1")


@_course()
def stalls_moved(steps: Steps) -> None:
    """The cluster moves while it is measured."""
    _measuring(steps)
    steps.move()
    steps.passes(80.0)
    steps.begin("stalls-1")
    steps.measure("stalls-1", 2)


@_course()
def stalls_failed(steps: Steps) -> None:
    """The code of a measure fails."""
    _measuring(steps)
    steps.fail("stalls-1", "The worker keeps ending: out of memory")


@_course()
def stalls_stopped(steps: Steps) -> None:
    """A measure is stopped after its first repeat."""
    _measuring(steps)
    steps.stop_run("stalls-1")
