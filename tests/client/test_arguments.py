"""What can be typed, and what a mistake is answered with."""

from __future__ import annotations

import contextlib
import inspect
import re
import tomllib
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transient_emulator.weather.settings import Settings
from transient_magics import client
from transient_magics.cli import arguments, options, verbs
from transient_magics.cli.arguments import parse, split
from transient_magics.client import Declaration
from transient_magics.client.declaring import Preview, resized, specify
from transient_magics.client.declaring.payload import Payload
from transient_magics.client.declaring.runs import specified
from transient_magics.controller.decisions.core import RequestVm
from transient_magics.controller.vms.machines import requested
from transient_magics.errors import DeclarationError
from transient_magics.protocol.space import parse_space
from transient_magics.spec import RunSpec
from transient_magics.works.bags.spec import BagSpec

TRAIN = "--model resnet --hparams-set resnet_cifar_32 --problem image_digits --train-steps 2000 "


def unnamed(verb: str, *lines: str) -> list[str]:
    """The options of a sub-command that none of the lines gives."""
    given = {word for line in lines for word in split(line)}
    return [each.flags[0] for each in options.declared(verb) if each.flags[0].startswith("-")
            and not given & {*each.spellings}]  # fmt: skip


def declared(line: str) -> dict[str, object]:
    return dict(parse("cluster", split(line)).values)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("k80x4 --name a  # four of them", ["k80x4", "--name", "a"]),
        ("k80x4 ;", ["k80x4"]),
        ("k80x4;", ["k80x4"]),
        ("--name 'two words' \"and 'more'\"", ["--name", "two words", "and 'more'"]),
        ("a#b '# no comment'", ["a#b", "# no comment"]),
        ('--hparams="a=1,b=2"', ["--hparams=a=1,b=2"]),
        ("''", [""]),
        ("", []),
    ],
)
def test_a_line_falls_into_words(line: str, words: list[str]) -> None:
    assert split(line) == words


def test_an_open_quote_is_named_by_its_column() -> None:
    with pytest.raises(DeclarationError, match=r"has no closing one.*column 8"):
        split("--name 'abc")


@pytest.mark.parametrize("line", ["k80x$n", "k80x{n}", "--hparams batch_size={batch}"])
def test_what_ipython_could_not_evaluate_is_no_value(line: str) -> None:
    with pytest.raises(DeclarationError, match="cannot be evaluated"):
        split(line)


def test_what_is_not_given_is_left_to_the_client() -> None:
    command = parse("cluster", ["k80x4"])
    assert command.verb == "declare"
    assert command.values == {"spec": "k80x4"}
    Declaration(**command.values)


def test_all_options_of_a_declaration_reach_the_client_under_its_names() -> None:
    line = (
        "k80x2@us-west1-b+p100 --name demo --ps 2 --ps-cores 8 --zone us-west1-b,us-west1-a "
        "--provisioning-model preemptible --max-workers 9 --no-replace --chief ps --max-hours 3 --max-cost $4.50 "
        "--idle 20 --project my-own --bucket none --image i --service-account s --network n --subnet u "
        "--no-external-ip "
        "--controller local --give-up ask --fallback on-demand=10m --ps-machine n2-standard-4 --no-firewall "
        "--ps-zone us-west1-a --machine-type p100=n1-standard-16 --disk 200GB:ssd "
        "--ssh-from 203.0.113.7/32,10.0.0.0/8 --for training --preemption-notice none --dry-run --wait -o c"
    )
    assert unnamed("declare", line) == []
    command = parse("cluster", split(line))
    assert (command.dry_run, command.wait, command.output) == (True, True, "c")
    assert Declaration(**command.values) == Declaration(
        spec="k80x2@us-west1-b+p100", name="demo", ps=2, ps_cores=8, zone=("us-west1-b", "us-west1-a"),
        provisioning_model="preemptible", max_workers=9, replace=False, chief="ps", max_hours=3.0,
        max_cost=4.5, idle=1200.0, project="my-own", bucket="none", image="i", service_account="s", network="n",
        subnet="u",
        external_ip=False, controller="local", give_up="ask", fallback_seconds=600.0, ps_machine="n2-standard-4",
        firewall=False, ps_zone="us-west1-a", machine_type="p100=n1-standard-16", disk="200GB:ssd",
        ssh_from=("203.0.113.7/32", "10.0.0.0/8"), purpose="training", preemption_notice=0,
    )  # fmt: skip


@pytest.mark.parametrize("line", ["k80 x 4 + p100 --ps 1", "--ps 1 k80x4+p100", "K80x4 --ps 1 +p100"])
def test_blanks_and_order_do_not_matter(line: str) -> None:
    assert "".join(str(declared(line)["spec"]).lower().split()) == "k80x4+p100"


@pytest.mark.parametrize(("text", "seconds"), [("120s", 120), ("2m", 120), ("120", 120), ("none", 0), ("NONE", 0)])
def test_a_preemption_notice_is_two_minutes_or_none(text: str, seconds: int) -> None:
    assert declared(f"k80 --preemption-notice {text}")["preemption_notice"] == seconds
    with pytest.raises(DeclarationError, match="Write 120s or none"):
        declared("k80 --preemption-notice 60s")


@pytest.mark.parametrize(
    ("options", "seconds"),
    [({}, 0), ({"preemption_notice": 120}, 120), ({"project": "my-own"}, 120),
     ({"project": "my-own", "preemption_notice": 0}, 0), ({"project": "my-own", "provisioning_model": "standard"}, 0)],
)  # fmt: skip
def test_spot_vms_on_google_request_two_minutes_of_notice(options: dict[str, Any], seconds: int) -> None:
    fixed = {"bucket": "none", "controller": "local"} if "project" in options else {}
    assert specify(Declaration("t4", name="n", **fixed, **options)).notice_seconds == seconds
    with pytest.raises(DeclarationError, match="not standard VMs"):
        specify(Declaration("t4", name="n", provisioning_model="standard", preemption_notice=120))


@pytest.mark.parametrize(("text", "hours"), [("3", 3.0), ("24h", 24.0), ("90m", 1.5), ("2d", 48.0)])
def test_hours_are_hours_unless_a_unit_says_otherwise(text: str, hours: float) -> None:
    assert declared(f"k80 --max-hours {text}")["max_hours"] == hours
    assert specify(Declaration("k80", name="n", max_hours=hours)).max_seconds == 3600 * hours


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            {"max_hours": 121 * 24.0},
            "Compute Engine limits the life of VMs to 120 days (--max-hours). Write 120d or less",
        ),
        (
            {"max_hours": 1 / 12},
            "would end after 5 min, but its VMs take 10 min or more to boot (--max-hours). Raise the limit",
        ),
        ({"max_cost": 0.01}, "(--max-cost). Raise the limit, or build an image"),
        ({"max_hours": float("nan")}, "--max-hours must be greater than 0"),
    ],
)
def test_a_time_limit_is_within_what_compute_engine_takes_and_vms_need(more: dict[str, float], said: str) -> None:
    with pytest.raises(DeclarationError) as told:
        specify(Declaration("t4", name="n", project="my-own", bucket="none", **more))
    assert said in str(told.value)
    assert specify(Declaration("t4", name="n", project="my-own", bucket="none", image="i", max_hours=1 / 12))
    assert specify(Declaration("t4", name="n", max_hours=1 / 360)), "emulated VMs boot as fast as they do"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("k80x4 --max-hour 3", "Unknown option '--max-hour' (transient cluster). Did you mean --max-hours?"),
        (
            "k80x4 --finish-by 18:00",
            "Unknown option '--finish-by' (transient cluster). transient train and transient plan have it.",
        ),
        ("k80x", "column 5: expected a count"),
        ("v10x2", "Did you mean v100?"),
        ("lst", "Unknown sub-command 'lst' (transient cluster). Did you mean list?"),
        ("k80x4 --ps zwei", "--ps must be a whole number of at least 1, not 'zwei'"),
        ("k80x4 --ps 0", "--ps must be a whole number"),
        ("k80x4 --ps ²", "--ps must be a whole number"),
        ("k80x4 --ps", "--ps: a value must follow"),
        ("k80x4 --idle soon", "Invalid duration 'soon' (--idle)"),
        ("k80x4 --zone us-west1-x", "Did you mean us-west1-c?"),
        ("k80x4 --provisioning-model sport", "Did you mean spot?"),
        ("k80x4 --max-cost -3", "--max-cost must be a number greater than 0"),
        ("k80x4 --name 'a b'", "Invalid name 'a b'"),
        ("k80x4 -o 3d", "-o must be the name of a variable"),
        ("k80x4 --fallback spot", "Invalid --fallback 'spot'"),
        ("k80x4 --chief workr", "Did you mean worker?"),
        ("k80x4 --give-up asks", "Did you mean ask?"),
        ("k80x4 --bucket b", "Invalid bucket name 'b'"),
        ("", "at least one group of workers"),
        ("delete", "needs the cluster's name, or --all"),
        ("revoke demo", "missing WORKER"),
        (
            "cost a --follow",
            "Unknown option '--follow' (transient cluster cost). It has none; transient cluster events has it.",
        ),
        ("status a --fallow", "Unknown option '--fallow' (transient cluster status). Known: --json."),
        ("status a b", "Unexpected argument 'b' (transient cluster status). -h lists its arguments."),
        ("resize demo k80y", "unknown GPU 'k80y'"),
        ("resize demo", "needs SPEC or --ps N, not both"),
        ("resize demo k80x2 --ps 2", "needs SPEC or --ps N, not both"),
        ("resize demo --ps 2 --give-up youngest", "--give-up needs SPEC"),
        ("resize demo k80x2 --give-up youngst", "Did you mean youngest?"),
        ("relocate demo", "needs --zone or --gpus"),
        ("relocate demo --zone us-east1-x", "Unknown zone 'us-east1-x'"),
        ("relocate demo --gpus t4,l4", "--gpus must be one GPU here"),
        ("events demo --kind vm.revokd", "Unknown kind of event 'vm.revokd' (--kind). Did you mean vm.revoked?"),
    ],
)
def test_a_mistake_is_answered_with_one_clear_line(line: str, said: str) -> None:
    with pytest.raises(DeclarationError) as error:
        parse("cluster", split(line))
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("line", "verb", "values"),
    [
        ("list --all", "list", {"all": True}),
        ("list", "list", {}),
        ("status demo", "status", {"name": "demo"}),
        ("attach", "attach", {}),
        ("resize demo k80x6", "resize", {"name": "demo", "spec": "k80x6"}),
        ("resize demo k80x2 --give-up slowest", "resize", {"name": "demo", "spec": "k80x2", "give_up": "slowest"}),
        ("resize demo --ps 2", "resize", {"name": "demo", "ps": 2}),
        ("relocate demo --zone us-east1-c", "relocate", {"name": "demo", "zone": "us-east1-c"}),
        ("relocate demo --gpus T4 --yes", "relocate", {"name": "demo", "gpus": "t4", "yes": True}),
        ("revoke demo worker-1 --in 30", "revoke", {"name": "demo", "worker": "worker-1", "seconds": 30.0}),
        ("move demo run-3", "move", {"name": "demo", "run": "run-3"}),
        ("move demo run-3 --before run-2", "move", {"name": "demo", "run": "run-3", "before": "run-2"}),
        ("agree demo run-1", "agree", {"name": "demo", "run": "run-1"}),
        ("logs demo ps-0 --lines 5", "logs", {"name": "demo", "worker": "ps-0", "lines": 5}),
        ("events demo --follow --kind vm", "events", {"name": "demo", "follow": True, "kind": "vm"}),
        ("delete --all", "delete", {"all": True}),
        ("sweep", "sweep", {}),
        ("sweep --yes --all-machines", "sweep", {"yes": True, "all_machines": True}),
    ],
)
def test_sub_commands(line: str, verb: str, values: dict[str, object]) -> None:
    command = parse("cluster", split(line))
    assert (command.verb, command.values) == (verb, values)


ALL_OPTIONS: dict[str, tuple[Callable[..., Any] | None, list[str]]] = {
    "list": (client.clusters, ["--all --json"]),
    "status": (client.cluster, ["demo --json"]),
    "work": (None, ["demo --json"]),
    "cost": (client.cluster, ["demo"]),
    "attach": (client.attach, ["demo --project my-own -o c"]),
    "resize": (None, ["demo k80x6 --give-up costliest", "demo --ps 2"]),
    "relocate": (None, ["demo --zone us-east1-c --gpus t4 --yes"]),
    "revoke": (None, ["demo worker-1 --in 30"]),
    "move": (None, ["demo run-3 --before run-2"]),
    "agree": (None, ["demo run-3", "demo"]),
    "stop": (None, ["demo job-3"]),
    "logs": (None, ["demo ps-0 --lines 5"]),
    "events": (None, ["demo --kind vm --follow --json"]),
    "delete": (client.delete_clusters, ["--all", "demo"]),
    "sweep": (client.sweep, ["--project my-own --yes --all-machines"]),
    "catalog": (client.catalog, ["t4 --project my-own"]),
    "export": (None, ["run-1 f --cluster c --data-dir d --checkpoint best --trust"]),
    "tensorboard": (None, ["run-1 f --cluster c"]),
    "plan": (client.plan, [
        "k80x4 --workload w --train-steps 5 --revocations own --no-replace --mode sync --backup-workers 1 --ps 2 "
        "--ps-cores 8 --zone us-west1-b --provisioning-model spot --batch-size 64 --ps-zone us-west1-a "
        "--machine-type n1-standard-8 --disk 200GB --what-if cache=0.5,link=2 -o p",
        "--model m --hparams-set h --problem p --target a>=1 --gpus k80,p100 --max-hours 3 --max-cost 4 "
        "--objective time --project my-own",
        "k80x4 --workload w --train-steps 5 --finish-by 18:00 --availability f.csv",
        "k80 --cell f.py --train-steps 5 --hparams batch_size=8 --param units=8 --include helpers",
        "cpux8 --bag --jobs 200 --job-time 1h:3h --spare 0.2 --policy reuse --save-time 20s",
    ]),
    "doctor": (client.doctor, [
        "t4 --project my-own --zone us-west1-b --bucket none --image i "
        "--service-account s --network n --subnet u --no-firewall --ssh-from 10.0.0.0/8 --no-external-ip",
    ]),
    "weather": (None, [
        "tour --revocations published --set waves=0.5 --hours-per-minute 6 --stockout us-west1-b:k80,for=10m "
        "--quota v100=4 --api-errors 0.05 --set api_latency=50ms..400ms --credentials expired,for=60s "
        "--set creation_preemptions=0.1 gpu_driver=fails --boot published --notice scaled --gpu-speed published "
        "--link 1gbit,far=100mbit --pressure 1cpu,for=5m --reclaim none --seed 7 --reset --availability none",
    ]),
    "deflate": (None, ["tour worker-1 --cpu 50% --network 0.2", "tour worker-1 --machine-type n1-standard-2",
                        "tour --reclaim 1.5cpu --policy deterministic", "tour worker-1 --restore"]),
    "measure": (client.measure, [
        "t4 --zones us-east1-c --budget 2 --every 5m --hours 2h --provisioning-model standard --project my-own --stop",
    ]),
    "lifetimes": (client.lifetimes, [
        "--gpu k80 --region us-west1 --source published --provisioning-model preemptible --fit weibull --job 4h "
        "--age 3h --checkpoint-cost 2m",
    ]),
    "image build": (client.build_image, [
        "i --project my-own --zone us-west1-b --base b --no-gpu --machine-type m --disk-gb 60 --network n --subnet u "
        "--no-external-ip --for jobs --wait",
    ]),
    "image list": (client.images, ["--project my-own"]),
    "image delete": (client.delete_image, ["i --project my-own"]),
}  # fmt: skip
"""What sub-commands but `declare` and `train` call (None: a handle's method), and lines with all their options."""


@pytest.mark.parametrize("verb", ALL_OPTIONS)
def test_every_option_of_the_other_sub_commands_is_taken_by_what_it_is_for(verb: str) -> None:
    taker, lines = ALL_OPTIONS[verb]
    assert unnamed(verb, *lines) == []
    for line in lines:
        magic = "cluster" if verb in arguments.verbs() else verb.partition(" ")[0]
        values = parse(magic, [*(verb.split()[-1:] if magic != verb else []), *split(line)]).values
        if verb == "weather":
            assert Settings().changed({name: values[name] for name in values.keys() - {"name", "reset"}})
        elif taker:
            assert inspect.signature(taker).bind(**values)
        assert inspect.signature(verbs.ACTS[verb]).bind(**values)
    assert {*arguments.verbs(), *arguments.verbs("transient")} - {*ALL_OPTIONS} == {
        "cluster",
        "train",
        "study",
        "job",
        "bag",
        "stalls",
        "image",
        "emulator",
    }


def test_every_option_of_a_measure_of_stalls_reaches_the_run_that_takes_it() -> None:
    line = (
        "--model m --hparams-set h --problem p --hparams a=1 --data-dir /d --param lr=0.1 --include a.py --pip einops "
        "--pip-build --ps-shards 2 --workers 2 --wire bf16 --pace 0.5 --repeats 4 --seconds 3 --cluster c --name slow "
        "--wait -o stalls"
    )
    assert unnamed("stalls", line) == []
    with pytest.raises(DeclarationError, match="Only a cell with a model of its own takes --param"):
        parse("stalls", split(line))
    command = parse("stalls", split(line.replace("--param lr=0.1 ", "")))
    assert (command.wait, command.output) == (True, "stalls")
    values = dict(command.values)
    assert inspect.signature(client.declare_stalls).bind(**values)
    assert [values.pop(each) for each in ("repeats", "seconds", "cluster", "most_workers")] == [4, 3.0, "c", 2]
    assert RunSpec.from_dict({**values, "train_steps": 1}) == RunSpec(
        "slow", 1, "m", "h", "p", "a=1", "/d", include=("a.py",), pip=("einops",), pip_build=True, ps_shards=2,
        wire="bf16", pace_seconds=0.5, least_workers=2,
    )  # fmt: skip
    assert dict(parse("stalls", ["run-1"]).values) == {"run": "run-1"}
    with pytest.raises(DeclarationError, match="--repeats must be a whole number of at least 3"):
        parse("stalls", ["run-1", "--repeats", "2"])


def test_a_synchronous_run_reads_its_options() -> None:
    values = parse("train", split(TRAIN + "--mode SYNC --backup-workers 2")).values
    assert (values["mode"], values["backup_workers"]) == ("sync", 2)


def test_checkpoints_come_by_steps_by_time_or_as_planned() -> None:
    def read(text: str) -> dict[str, object]:
        values = parse("train", split(TRAIN + f"--checkpoint-every {text}")).values
        return {key: value for key, value in values.items() if key.startswith("checkpoint")}

    assert read("500") == {"checkpoint_steps": 500, "checkpoint_seconds": None}
    assert read("5m") == {"checkpoint_steps": None, "checkpoint_seconds": 300.0}
    assert read("Auto") == {"checkpoint_steps": None, "checkpoint_auto": True}


def test_how_many_checkpoints_stay_is_said_with_a_number() -> None:
    assert parse("train", split(TRAIN + "--keep 2")).values["keep"] == 2


def test_how_mini_batches_follow_what_is_measured_is_read() -> None:
    def read(text: str) -> dict[str, object]:
        values = parse("train", split(TRAIN + f"--batching dynamic {text}")).values
        return {key: values[key] for key in values.keys() - parse("train", split(TRAIN)).values.keys() - {"batching"}}

    assert read("--set deadband=.1 --set batch-smoothing=0.5") == {"deadband": 0.1, "batch_smoothing": 0.5}
    assert read("--set step_time=proportional deadband=0") == {"step_time": "proportional", "deadband": 0.0}
    assert read("--batch-bounds 16,256") == {"batch_least": 16, "batch_most": 256}
    assert read("--batch-bounds ,256") == {"batch_most": 256}
    assert [read(f"--eval-batches {many}")["eval_batches"] for many in ("all", "20")] == [0, 20]


def test_all_options_of_a_run_reach_the_client_under_its_names() -> None:
    line = TRAIN + (
        "--cluster c --name r --hparams batch_size=64,learning_rate=0.1 --data-dir gs://d/r --include a.py b --pip x y "
        "--cache 2GB:shm --set prep_threads=3 "
        "--pip-build --checkpoint-every 5m --keep 2 --ps-shards 3 --mode async --batching dynamic "
        "--batch-bounds 16,256 --set deadband=.1 batch_smoothing=0.5 --set step_time=proportional --lr-policy slots "
        "--damping staleness --wire bf16 --workers 2:4 --set alarm_below=0.9 alarm_after=60 noise_share=0.05 "
        "--eval-every 50 "
        "--eval-batches all --keep-best 'max agreement' --stop-when 'val_loss no better in 3' --seed 7 "
        "--resume run-1 --no-check --when-done workers --pace .2 --finish-by 18:00 --max-cost $5 --set confidence=0.9 "
        "--gpus t4,l4 --zones us-east1-c,us-east1-d --adapt ask --wait -o run"
    )
    besides = ["--keep-cluster", "--project", "--param", "--prep", "--backup-workers", "--max-hours"]
    assert unnamed("train", line) == besides, (
        "add a new option to `line`, or to `besides` if it excludes an option there"
    )
    assert parse("train", split(TRAIN + "--prep 'CPU x2'")).values["prep"] == "cpux2"
    command = parse("train", split(line))
    assert (command.wait, command.output) == (True, "run")
    assert command.values == {
        "model": "resnet", "hparams_set": "resnet_cifar_32", "problem": "image_digits", "train_steps": 2000,
        "cluster": "c", "name": "r", "hparams": "batch_size=64,learning_rate=0.1", "data_dir": "gs://d/r",
        "cache": "2GB:shm", "prep_threads": 3,
        "include": ("a.py", "b"), "pip": ("x", "y"), "pip_build": True, "checkpoint_steps": None,
        "checkpoint_seconds": 300.0, "keep": 2, "ps_shards": 3, "mode": "async", "batching": "dynamic",
        "batch_least": 16, "batch_most": 256, "deadband": 0.1, "batch_smoothing": 0.5, "step_time": "proportional",
        "lr_policy": "slots", "damping": "staleness", "wire": "bf16", "alarm_below": 0.9, "alarm_after": 60.0,
        "noise_share": 0.05, "eval_steps": 50, "eval_batches": 0, "seed": 7,
        "keep_best": "max agreement", "stop_when": "min val_loss no better in 3 evaluations", "resume": "run-1",
        "check": False, "when_done": "workers", "pace_seconds": 0.2, "finish_by": "18:00", "max_cost": 5.0,
        "confidence": 0.9, "gpus": ("t4", "l4"), "zones": ("us-east1-c", "us-east1-d"), "adapt": "ask",
        "least_workers": 2, "most_workers": 4,
    }  # fmt: skip
    assert RunSpec(**{name: value for name, value in command.values.items() if name != "cluster"})


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--model resnet", "needs --hparams-set and --problem too"),
        ("--model resnet --train-steps 5", "needs --hparams-set and --problem too"),
        ("--train-steps 5 --eval-batches 0", "--eval-batches must be a whole number of at least 1, or all, not '0'"),
        ("--train-steps 5 --eval-every x", "a number of steps of at least 1, or end, not 'x'"),
        ("--train-steps 5 --checkpoint-every ²", "Invalid interval '²' (--checkpoint-every)"),
        ("--train-steps 5 --checkpoint-every soon", "Invalid interval 'soon' (--checkpoint-every). Write 500 (steps)"),
        ("--train-steps 5 --pip", "--pip: a value must follow"),
        ("--train-steps 5 --cache 2GB", "Only a model of Tensor2Tensor takes --cache"),
        ("--train-steps 5 --cache lots", "Invalid --cache: 'lots' is not a size: write 2GB or 500MB:memory"),
        (
            "--train-steps 5 --cache 2GB:tape",
            "Invalid --cache: '2GB:tape' has an unknown place: use one of memory, shm, disk",
        ),
        (TRAIN + "--prep t4x2", "Invalid --prep: 't4x2' must be VMs without a GPU: write cpux4"),
        (TRAIN + "--prep cpux2 --cache 2GB", "--cache and --prep cannot be used together"),
        ("--train-steps 5 --prep cpux4", "Only a model of Tensor2Tensor takes --prep"),
        ("--train-steps 5 --hparams batch_size=4", "Only a model of Tensor2Tensor takes --hparams"),
        (
            TRAIN + "--keep-best agreement",
            "Invalid --keep-best: the direction of agreement is unknown",
        ),
        (TRAIN + "--keep-best 'two words'", "Invalid --keep-best: 'two words' is not a metric"),
        (
            TRAIN + "--stop-when accuracy",
            "Invalid --stop-when: 'accuracy' is not a condition: write 'accuracy no better in",
        ),
        (TRAIN + "--stop-when 'loss no better in 0'", "Invalid --stop-when"),
        (TRAIN + "--stop-when 'loss no better in 3' --eval-every end", "--stop-when needs several evaluations"),
        (TRAIN + "--batching dynamc", "Did you mean dynamic?"),
        (TRAIN + "--batching dynamic --set deadband=5", "Invalid --set deadband=5: must be from 0 to 1, not 5"),
        (TRAIN + "--batching static --set deadband=0.1", "--set deadband needs --batching dynamic"),
        (TRAIN + "--set dedband=0.1", "Unknown setting 'dedband' (--set). Did you mean deadband?"),
        (TRAIN + "--set deadband", "Invalid --set 'deadband'. Write NAME=VALUE"),
        (TRAIN + "--set deadband=wide", "Invalid --set deadband=wide"),
        (TRAIN + "--set confidence=0.9", "--set confidence needs --finish-by"),
        (TRAIN + "--batch-bounds 16,256", "--batch-bounds needs --batching static or dynamic"),
        (TRAIN + "--batching static --batch-bounds 9,8", "Invalid --batch-bounds '9,8'"),
        (TRAIN + "--batching static --batch-bounds 16", "Invalid --batch-bounds '16'"),
        (TRAIN + "--batching dynamic --set step_time=affin", "Did you mean affine?"),
        (TRAIN + "--mode sink", "Did you mean sync?"),
        (TRAIN + "--damping staleness --mode sync", "--damping staleness needs --mode async"),
        (TRAIN + "--set alarm_below=1.2", "Invalid --set alarm_below=1.2: must be from 0 to 1, not 1.2"),
        (TRAIN + "--set noise_share=-1", "Invalid --set noise_share=-1: must be from 0 to 1, not -1.0"),
        (TRAIN + "--set noise_share=2", "Invalid --set noise_share=2: must be from 0 to 1, not 2"),
        (TRAIN + "--set prep_threads=1.5", "Invalid --set prep_threads=1.5: must be a whole number"),
        (TRAIN + "--backup-workers 1", "--backup-workers needs --mode sync"),
        (TRAIN + "--mode sync --backup-workers -1", "whole number of at least 0"),
        (TRAIN + "--keep 0", "--keep must be a whole number of at least 1, not '0'"),
        (TRAIN + "--keep -1", "--keep must be a whole number of at least 1, not '-1'"),
        (TRAIN + "--keep all", "--keep must be a whole number of at least 1, not 'all'"),
        (TRAIN + "--hparams 64", "Invalid --hparams '64'"),
        (TRAIN + "--lr-policy activ", "Did you mean active?"),
        (TRAIN + "--hparam a=1", "Did you mean --hparams?"),
        (TRAIN + "--finish-by 6h --zones us-east1-x", "Unknown zone 'us-east1-x' (--zones)"),
    ],
)
def test_a_mistake_in_a_run_is_answered_with_one_clear_line(line: str, said: str) -> None:
    with pytest.raises(DeclarationError) as error:
        parse("train", split(line), called="%%train")
    assert said in str(error.value)


def test_static_mini_batches_are_refused_where_the_speed_of_unequal_workers_is_not_known() -> None:
    static = {"name": "run", "train_steps": 10, "batching": "static"}

    def specified_on(workers: str, **more: str) -> RunSpec:
        return specified(specify(Declaration(workers)), {**static, **more}, None, Payload())

    with pytest.raises(DeclarationError) as error:
        specified_on("k80x2+cpux2")
    assert "that of workers without a GPU is unknown (--batching)" in str(error.value)
    assert "Use --batching dynamic" in str(error.value)
    assert specified_on("k80x2+cpux2", batching="dynamic").batching == "dynamic"
    for workers in ("k80x2+p100", "t4x2+l4", "cpux2"):
        assert specified_on(workers).batching == "static"
    assert specified(specify(Declaration("k80x2+cpux2")), static, 1, Payload()).most_workers == 1


def test_a_study_takes_its_own_options_and_those_of_its_runs() -> None:
    own = (
        "--over 'lr=1e-3:1e-1:log units=16,32' --trials 8 --sampler tpe --pruner hyperband --objective 'max accuracy' "
        "--repeat 2 --workers 3 --per-vm 4 --max-cost 2 --max-hours 90m --give-up-after 5m --seed 3 --name s "
        "--wait -o found --when-done cluster"
    )
    command = parse("study", split(f"{own} --train-steps 100 --param rate=0.5 kind=wide --eval-every 10 --cluster c"))
    assert (command.wait, command.output) == (True, "found")
    assert command.values == {
        "over": "lr=1e-3:1e-1:log units=16,32", "trials": 8, "sampler": "tpe", "pruner": "hyperband",
        "objective": "max accuracy", "repeat": 2, "workers": 3, "per_vm": 4, "max_cost": 2.0, "max_hours": 1.5,
        "give_up_seconds": 300.0, "seed": 3, "name": "s", "when_done": "cluster", "train_steps": 100,
        "params": {"rate": 0.5, "kind": "wide"}, "eval_steps": 10, "cluster": "c",
    }  # fmt: skip
    passed_on = {each.name for each in options.declared("train")} - {each.name for each in options.declared("study")}
    alone = {"finish_by", "gpus", "zones", "adapt"}  # with a cluster for itself
    own_cluster = {"spec", "keep_cluster", "project"}
    assert passed_on == {"resume", "prep", *alone, *own_cluster}, "all other options of a run hold for those of a study"
    with pytest.raises(DeclarationError, match="Unknown setting 'confidence'"):
        parse("study", split(f"{own} --train-steps 100 --set confidence=0.9"))
    for line, said in (
        ("--over lr=1:0 --train-steps 5", "Invalid --over: lr: the range is empty: 1.0 is not below 0.0"),
        ("--sampler tpo --train-steps 5", "Unknown value 'tpo' (--sampler). Did you mean tpe?"),
        ("--param lr --train-steps 5", "Invalid --param 'lr'. Write NAME=VALUE, such as lr=0.1"),
        ("--param if=1 --train-steps 5", "Invalid --param: 'if' is reserved by Python"),
        ("--share-input --train-steps 5", "Only a model of Tensor2Tensor takes --share-input"),
        (f"{TRAIN} --share-input --cache 2GB", "--cache and --share-input cannot be used together"),
    ):
        with pytest.raises(DeclarationError) as refused:
            parse("study", split(line))
        assert str(refused.value).startswith(said)
    with pytest.raises(DeclarationError, match="Only a cell with a model of its own takes --param"):
        parse("train", split(f"{TRAIN} --param lr=1"))


@pytest.mark.parametrize("verb", [*arguments.verbs(), ""])
def test_everything_explains_itself(verb: str) -> None:
    command = parse("cluster", [*([verb] if verb else []), "--help"], called="%transient_cluster")
    assert command.verb == "help"
    assert str(command.values["help"]).startswith(f"usage: %transient_cluster {verb}".rstrip())


@pytest.mark.parametrize(
    ("verb", "said"),
    [("deflate", "NAME [WORKER]"), ("catalog", "[GPU]"), ("agree", "NAME [RUN]"), ("revoke", "NAME WORKER")],
)
def test_a_usage_says_which_words_may_be_left_out(verb: str, said: str) -> None:
    called = f"transient {verb}"
    assert str(parse(verb, ["-h"], called=called).values["help"]).startswith(f"usage: {called} {said} [options]\n")


def test_the_help_of_a_cluster_shows_that_its_sub_commands_are_no_magics() -> None:
    said = str(parse("cluster", ["-h"], called="%transient_cluster").values["help"])
    assert "as in `%transient_cluster revoke NAME WORKER`:\n  list, status, cost, attach," in said


def test_a_table_says_the_same_as_a_line() -> None:
    table = tomllib.loads(
        'name = "demo"\nmax-hours = "3h"\nps_cores = 8\nreplace = false\nzone = ["us-west1-b", "us-west1-a"]\n'
        '[[group]]\ngpu = "k80"\ncount = 2\nzone = "us-west1-b"\n[[group]]\ngpu = "p100"\n'
    )
    command = parse("cluster", arguments.words_of_table(table))
    assert Declaration(**command.values) == Declaration(
        spec="k80x2@us-west1-b+p100x1", name="demo", max_hours=3.0, ps_cores=8, replace=False,
        zone=("us-west1-b", "us-west1-a"),
    )  # fmt: skip


@given(st.text())
def test_any_text_is_read_or_refused_by_our_own_error(line: str) -> None:
    for verb in ("cluster", "train"):
        with contextlib.suppress(DeclarationError):
            assert parse(verb, split(line)).verb


def test_a_controller_on_a_vm_takes_a_bucket_and_is_given_one() -> None:
    with pytest.raises(DeclarationError, match="need a bucket"):
        specify(Declaration("k80", name="n", controller="cluster", bucket="none"))
    assert specify(Declaration("k80", name="n", controller="cluster")).bucket == "tm-emulated-project-us-west1"
    assert specify(Declaration("k80", name="n")).bucket is None
    assert specify(Declaration("k80", name="n")).controller == "local"


def test_with_a_project_the_controller_leaves_this_machine_unless_the_results_cannot() -> None:
    mine = Declaration("v100", name="n", project="my-own", service_account="robot")
    assert specify(mine).controller == "cluster"
    assert specify(replace(mine, bucket="none")).controller == "local"
    assert specify(replace(mine, controller="local")).bucket == "tm-my-own-us-central1"


def test_compute_engines_own_account_is_taken_only_if_it_is_typed() -> None:
    mine = Declaration("v100", name="n", project="my-own")
    assert specify(mine).controller == "local"
    assert "The controller would run on this machine" in str(Preview(specify(mine)))
    with pytest.raises(DeclarationError, match=r"needs a service account.*--service-account.*docs/accounts\.md"):
        specify(replace(mine, controller="cluster"))
    said = {"robot": "robot@my-own.iam.gserviceaccount.com", "robot@p.x": "robot@p.x", "default": "default"}
    for typed, address in said.items():
        spec = specify(replace(mine, service_account=typed))
        assert (spec.controller, spec.service_account) == ("cluster", address)
        assert "would stay" not in str(Preview(spec))


def test_the_controllers_vm_is_in_the_price_and_in_what_the_limit_on_money_buys() -> None:
    here = Declaration("t4x2", name="n", project="my-own", zone=("us-central1-a",), max_cost=1.0)
    local = specify(replace(here, controller="local"))
    away = specify(replace(here, service_account="robot"))
    (row,) = [row for row in Preview(away).rows if row["role"] == "controller"]
    assert (row["count"], row["machine_type"], row["model"]) == (1, "e2-small", "standard")
    assert 0.01 < row["hourly"] < 0.03
    assert away.hourly == pytest.approx(local.hourly + row["hourly"])
    assert away.on_demand_hourly == pytest.approx(local.on_demand_hourly + row["hourly"])
    assert away.ends_at - away.declared_at == pytest.approx(3600 * 1.0 / away.hourly)
    assert sum(row["count"] * row["hourly"] for row in Preview(away).rows) == pytest.approx(away.hourly)
    assert resized(away, "t4x3").price("controller", away.home_zone) == away.price("controller", away.home_zone)


def test_what_an_earlier_version_declared_keeps_its_controller_where_it_is() -> None:
    now = specify(Declaration("t4x2", name="n", project="my-own", service_account="robot"))
    then = replace(now, prices={kind: line for kind, line in now.prices.items() if "controller" not in kind})
    assert (then.controller, then.controller_vm) == ("cluster", False)
    assert not resized(then, "t4x3").controller_vm
    assert [row["role"] for row in Preview(then).rows] == ["parameter server", "worker"]


def test_what_the_legacy_model_cannot_promise_is_said() -> None:
    said = str(Preview(specify(Declaration("t4", name="n", project="my-own", provisioning_model="preemptible"))))
    assert "Compute Engine enforces no time limit for preemptible VMs" in said
    for other in ({"provisioning_model": "spot", "project": "my-own"}, {"provisioning_model": "preemptible"}):
        assert "takes no end" not in str(Preview(specify(Declaration("t4", name="n", **other))))  # type: ignore[arg-type]


def test_a_cluster_for_jobs_has_no_tensorflow_and_a_small_vm_on_demand_and_says_what_that_saves() -> None:
    mine = Declaration(
        "t4x2", name="n", project="my-own", service_account="robot", purpose="jobs", ssh_from=("10.0.0.0/8",)
    )
    spec, trains = specify(mine), specify(replace(mine, purpose="training"))
    assert (spec.controller, spec.bucket, spec.parameter_server_cores) == ("cluster", trains.bucket, 2)
    alone = specify(replace(mine, controller="local"))
    assert (alone.controller, alone.bucket) == ("local", None)
    assert spec == type(spec).from_dict(spec.to_dict())
    shown = Preview(spec)
    seat, row = [row for row in shown.rows if row["model"] == "standard"]
    assert (row["count"], row["role"], row["machine_type"]) == (1, "scheduler", "e2-standard-2")
    assert seat["role"] == "controller"
    assert row["hourly"] < trains.prices["parameter-server"].hourly / 2
    assert "Its VMs boot in about 7 min without TensorFlow, and in 10 min with it (estimates)." in str(shown)
    assert "about 3 min without TensorFlow, and in 5 min with it" in str(Preview(specify(replace(mine, spec="cpu"))))
    assert "from an image, as those for training" in str(Preview(specify(replace(mine, image="i"))))
    assert "On Google Cloud its VMs boot in about 3 min" in str(Preview(specify(Declaration("cpu", purpose="jobs"))))
    assert "without TensorFlow" not in str(Preview(trains))
    assert specify(replace(mine, ps_cores=8)).prices["parameter-server"].machine_type == "n1-custom-8-32768"
    short = Declaration("cpu", name="n", project="my-own", bucket="none", max_hours=0.06)
    with pytest.raises(DeclarationError, match="take 5 min or more to boot"):
        specify(short)
    assert specify(replace(short, purpose="jobs"))
    for wrong, why in (
        ({"ps": 2}, r"A cluster for jobs cannot train.* \(--ps\)\. Leave out --ps or --for jobs\."),
        ({"chief": "worker"}, r"\(--chief\)"),
        (
            {"purpose": "training", "image": "family/transient-magics-jobs"},
            r"no TensorFlow, which runs need \(--image\)",
        ),
        ({"purpose": "fun"}, r"Unknown purpose 'fun' \(--for\)\. Known: jobs, training\."),
    ):
        with pytest.raises(DeclarationError, match=why):
            specify(replace(mine, **wrong))  # type: ignore[arg-type]
    with pytest.raises(DeclarationError, match=r"Did you mean jobs\?"):
        declared("cpu --for job")


def test_parameter_servers_may_have_another_machine_at_its_own_price() -> None:
    mine = Declaration("t4x2", name="n", project="my-own", zone=("us-central1-a",))
    server = RequestVm("ps-0", "ps", 0, "", "us-central1-a", "standard", None)
    usual = specify(mine).prices["parameter-server"]
    spec = specify(replace(mine, ps_machine="e2-standard-8"))
    line = spec.prices["parameter-server"]
    assert (line.machine_type, spec.parameter_server_cores) == ("e2-standard-8", 8)
    assert line.hourly == line.on_demand_hourly == pytest.approx(2 * 0.134 + line.extras)
    assert (usual.machine_type, usual.hourly) == ("n1-custom-4-16384", pytest.approx(0.2157, rel=0.01))
    assert "e2-standard-8    -         on demand   $0.280/h each" in str(Preview(spec))
    assert requested(spec, server).machine_type == "e2-standard-8"
    assert f"This includes ${spec.extras_hourly:.3f} per hour for disks and external addresses." in str(Preview(spec))
    inside = specify(replace(mine, external_ip=False))
    assert specify(mine).hourly - inside.hourly == pytest.approx(0.005 + 2 * 0.0025)
    assert "per hour for disks." in str(Preview(inside))
    with pytest.raises(DeclarationError, match="Leave out --ps-cores"):
        specify(replace(mine, ps_machine="e2-standard-8", ps_cores=8))
    with pytest.raises(DeclarationError, match="Machines with a known price: n1-standard"):
        specify(replace(mine, ps_machine="c3-standard-4"))


def test_workers_may_have_another_machine_and_disk_and_parameter_servers_a_zone_of_their_own() -> None:
    mine = Declaration("t4x2+v100", name="n", project="my-own", zone=("us-central1-a",))
    usual = specify(mine)
    spec = specify(
        replace(mine, machine_type="t4=n1-standard-16", disk="200GB:ssd", ps_zone="us-central1-c", max_workers=9)
    )
    assert spec == type(spec).from_dict(spec.to_dict())
    assert [spec.prices[kind].machine_type for kind in ("t4", "v100")] == ["n1-standard-16", "n1-standard-8"]
    assert spec.prices["t4"].hourly > usual.prices["t4"].hourly + 0.1
    assert (spec.home_zone, spec.zones) == ("us-central1-c", ("us-central1-a",))
    assert spec.transfer_prices == {"us-central1-a": 0.01}
    said = str(Preview(spec))
    assert "1 x parameter server  us-central1-c " in said
    assert "2 x worker            us-central1-a    n1-standard-16   t4 " in said
    assert f"This includes ${spec.extras_hourly:.3f} per hour for disks (200 GB pd-ssd) and external addresses." in said
    assert "between us-central1-a and the parameter servers in us-central1-c costs up to $0.01 per GiB" in said
    more = resized(spec, "t4x3+p100")
    assert more.prices["t4"] == spec.prices["t4"], "a resize keeps the machines"
    assert more.prices["p100"].extras == spec.prices["t4"].extras, "and the disks"
    assert more.home_zone == "us-central1-c"
    for wrong, why in (
        ({"ps_zone": "europe-west1-b"}, r"is on another continent than the workers in us-.* \(--ps-zone\)"),
        ({"ps_zone": "us-central1-z"}, "unknown zone 'us-central1-z'"),
        (
            {"ps_zone": "us-east5-a"},
            r"N1 machines are not available in us-east5-a, according to the catalog \(--ps-zone\)",
        ),
        ({"machine_type": "n1-standard-32"}, "a VM with 1 V100 can have at most 12 and 78 GB"),
        ({"disk": "5GB"}, r"20 GB to 64 TB, not '5GB' \(--disk\)"),
        ({"purpose": "jobs", "ps_zone": "us-central1-c"}, r"A cluster for jobs cannot train.* \(--ps-zone\)"),
    ):
        with pytest.raises(DeclarationError, match=why):
            specify(replace(mine, **wrong))  # type: ignore[arg-type]
    assert specify(replace(mine, ps_zone="us-east5-a", ps_machine="e2-standard-4")).home_zone == "us-east5-a"
    with pytest.raises(
        DeclarationError, match=r"Unknown zone 'us-cntral1-c' \(--ps-zone\)\. Did you mean us-central1-c"
    ):
        declared("t4 --ps-zone us-cntral1-c")
    with pytest.raises(DeclarationError, match=r"Invalid disk 'much' \(--disk\)"):
        declared("t4 --disk much")


def test_cells_and_terminals_have_one_act_for_each_verb() -> None:
    images = {f"image {each}" for each in arguments.verbs("image")}
    said = {"declare", *arguments.verbs(), *images, *arguments.verbs("transient")} - {"cluster", "image", "emulator"}
    assert said == {*verbs.ACTS, *options.work_commands()}, "these need more than their line"


@pytest.mark.parametrize(
    ("on", "said"),
    [
        ("k08x4", "SPEC 'k08x4', column 1: unknown GPU 'k08' (--on). Did you mean k80?"),
        ("' '", "--on needs at least one configuration (--on)"),
        ("k80x1,,k80x2", "A configuration between two commas is empty (--on)"),
        ("k80x1,k80", "The configuration k80x1 occurs twice (--on). To train each point five times, use --repeat 5."),
        (
            "k80x2@us-west1-b",
            "'k80x2@us-west1-b' names a zone, but a configuration uses workers of any zone",
        ),
        ("k80x0", "a count must be from 1 to 1000, not 0 (--on)"),
    ],
)
def test_configurations_that_cannot_be_are_refused_where_they_are_typed(on: str, said: str) -> None:
    with pytest.raises(DeclarationError, match=re.escape(said)):
        parse("study", split(f"--on {on} --train-steps 9"))


def test_configurations_say_how_many_workers_a_run_takes() -> None:
    values = parse("study", split("--on k80,P100x2+k80,k80x4 --train-steps 9")).values
    assert values["on"] == ("k80x1", "p100x2+k80x1", "k80x4")
    with pytest.raises(DeclarationError, match="--on and --workers cannot be used together"):
        client.declare_study(source="", train_steps=9, on=["k80x1"], workers=2)


def test_all_options_of_a_bag_reach_the_client_under_its_names() -> None:
    line = (
        "--over 'x=0:1 y=1,2' --jobs 200 --spare 0.2 --surrogate ensemble --until pressure=0.02,energy=0.01 --policy "
        "memoryless --workers 3 --job-time 20m --save-time 2s --job-timeout 1h --memory 2 --retries 2 --max-cost $4 "
        "--max-hours 3 --seed 7 --include a.py --pip x y --pip-build --cluster c --name lj --wait -o bag"
    )
    assert unnamed("bag", line) == []
    command = parse("bag", split(line))
    assert (command.wait, command.output) == (True, "bag")
    values = dict(command.values)
    assert (values.pop("over"), values.pop("until"), values.pop("cluster")) == (
        "x=0:1 y=1,2", "pressure=0.02,energy=0.01", "c",
    )  # fmt: skip
    assert BagSpec.from_dict({**values, "space": [asdict(each) for each in parse_space("x=0:1 y=1,2")]}) == BagSpec(
        "lj", parse_space("x=0:1 y=1,2"), 200, 0.2, "ensemble", policy="memoryless", workers=3, seed=7,
        job_seconds=1200.0, save_seconds=2.0, timeout_seconds=3600.0, memory_bytes=2 * 10**9, retries=2, max_cost=4.0,
        max_hours=3.0, include=("a.py",), pip=("x", "y"), pip_build=True,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--jobs 3", "A bag needs --over"),
        ("--over x=0:1", "A bag needs --jobs"),
        ("--over x=1:0 --jobs 3", "Invalid --over: x: the range is empty"),
        ("--over x=0:1 --jobs 3 --until -1", "Invalid --until: '-1' must be a number greater than 0"),
        ("--over x=0:1 --jobs 0", "--jobs"),
        ("--over x=0:1 --jobs 3 --surrogate gpt", "--surrogate"),
    ],
)
def test_bags_that_cannot_be_are_refused_where_they_are_typed(line: str, said: str) -> None:
    with pytest.raises(DeclarationError, match=re.escape(said)):
        parse("bag", split(line))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("tour", "needs a VM with --cpu, --network or --machine-type, or else --reclaim or --restore"),
        ("tour worker-1 --cpu 50% --restore", "needs a VM with"),
        ("tour worker-1", "needs a VM with"),
        ("tour worker-1 --cpu 50% --reclaim 1cpu", "needs a VM with"),
        ("tour --reclaim 1cpu --network 50%", "needs a VM with"),
        ("tour worker-1 --cpu 1%", "--cpu must be from 5% to 100%, not '1%'"),
        ("tour worker-1 --cpu half", "--cpu must be from 5% to 100%, not 'half'"),
        ("tour worker-1 --cpu 50% --policy priority", "--policy needs --reclaim"),
        ("tour worker-1 --cpu 50% --machine-type n1-standard-2", "--machine-type cannot be used with --cpu"),
        ("tour --machine-type n1-standard-2", "needs a VM with"),
        ("tour --reclaim 0cpu", "Invalid number of vCPUs '0cpu'"),
        ("tour --reclaim 1cpu --policy fair", "--policy"),
    ],
)
def test_what_cannot_be_deflated_is_refused_in_a_sentence(line: str, said: str) -> None:
    with pytest.raises(DeclarationError, match=re.escape(said)):
        parse("deflate", split(line))


@pytest.mark.parametrize("typed", ["my-project", "my-project-123456", "example.com:my-project", "a.example.com:p"])
def test_a_projects_id_is_taken_as_google_defines_it(typed: str) -> None:
    assert parse("cluster", ["t4", "--project", typed]).values["project"] == typed
    assert specify(Declaration("t4", name="n", project=typed, bucket="none")).project == typed


@pytest.mark.parametrize(
    "typed", ["My Project", "my project", "My-Project", "short", "p", "my-project-", "4711", "a/b"]
)
def test_a_projects_name_or_number_is_refused_with_the_command_that_lists_ids(typed: str) -> None:
    for verb, words in (("cluster", ["t4"]), ("doctor", []), ("image list", []), ("catalog", [])):
        with pytest.raises(DeclarationError, match=f"'{typed}' is not the ID") as raised:
            parse(verb, [*words, "--project", typed])
        assert "gcloud projects list" in raised.value.fix
    with pytest.raises(DeclarationError, match="is not the ID"):
        specify(Declaration("t4", name="n", project=typed))
