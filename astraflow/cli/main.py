"""The `astraflow` command. Each command's work is in a module of its own, imported when the command runs."""

from __future__ import annotations

import importlib
import os
import sys
from importlib.metadata import version as installed_version
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

from astraflow.cli.inputs import writable
from astraflow.core.observability import log
from astraflow.errors import AstraFlowError, ConfigError, boundary, is_utf8

USER_ERROR = 2
FAILURE = 1

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Asynchronous reinforcement learning for language models and agents.",
)
bench = typer.Typer(no_args_is_help=True, help="Measure the system; each bench takes --json FILE.")
app.add_typer(bench, name="bench")
inspect = typer.Typer(no_args_is_help=True, help="Look closely at one thing of a run.")
app.add_typer(inspect, name="inspect")
weights = typer.Typer(no_args_is_help=True, help="Weight versions of a run.")
app.add_typer(weights, name="weights")
config = typer.Typer(no_args_is_help=True, help="What a configuration's keys are, and what they are set to.")
app.add_typer(config, name="config")

Json = Annotated[
    Path | None,
    typer.Option("--json", metavar="FILE", callback=writable, help="Also write the results here, as JSON."),
]
Inputs = Annotated[
    list[str],
    typer.Argument(metavar="FILE... [KEY=VALUE...]", help="YAML files (later wins), then overrides such as seed=2."),
]


@app.command()
def run(
    inputs: Inputs,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the processes and the configuration only.")] = False,
) -> None:
    """Train: start everything on this machine, show the run, stop in order."""
    _command("run").run(inputs, dry_run)


@app.command()
def join(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run directory of a run that goes on.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="What the service is called in the run.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE...]", help="What it has of its own, as rollout.max_concurrent_rollouts=16."),
    ] = None,
) -> None:
    """Add one more rollout service (RaaS) to a run that goes on; it leaves with Ctrl-C, drained, or with the run."""
    _command("join").join(run, name, overrides or [])


@app.command("eval")
def evaluate(
    checkpoint: Annotated[Path, typer.Argument(help="Hugging Face directory, e.g. RUN/checkpoints/step_000060.")],
    config: Annotated[list[Path], typer.Option("--config", metavar="FILE", help="Configuration of the run.")],
    overrides: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE...]")] = None,
    json: Json = None,
) -> None:
    """Score a checkpoint on the evaluation datasets of a configuration."""
    _command("evaluate").evaluate(checkpoint, config, overrides or [], json)


@app.command()
def doctor(
    inputs: Annotated[list[str] | None, typer.Argument(metavar="[FILE...] [KEY=VALUE...]")] = None,
    answers: Annotated[
        list[str] | None,
        typer.Option("--answer", metavar="TEXT", help="How your model writes an answer, e.g. 'Result: {answer}'."),
    ] = None,
    json: Json = None,
) -> None:
    """Check machine, tokenizer, data, reward, batch, ports and disk before a run; exit code 1 on an error."""
    _command("doctor").doctor(inputs or [], answers or [], json)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run directories; several are compared.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", callback=writable, help="Where to write it.")
    ] = None,
) -> None:
    """Draw a run, or compare several, in one HTML page that needs no network."""
    _command("report").report(runs, output)


@app.command()
def audit(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run directory.")],
    json: Json = None,
) -> None:
    """Prove from a run's ledger what became of every prompt: trained once, dropped with a reason, or in flight."""
    _command("audit").show(run, json)


@app.command()
def replay(run: Annotated[Path, typer.Argument(metavar="RUN", help="Run directory.")]) -> None:
    """Derive every batch of a recorded run again, bit for bit, from its event log; exit code 1 on a difference."""
    _command("replay").replay(run)


@app.command()
def simulate(
    raas: Annotated[int, typer.Option(min=1, help="Rollout services.")] = 1000,
    concurrency: Annotated[int, typer.Option(min=1, help="Groups at once in each.")] = 8,
    episodes: Annotated[int, typer.Option(min=1, help="Episodes that each policy is trained on.")] = 1_000_000,
    n_samples: Annotated[int, typer.Option(min=1, help="Episodes of a group.")] = 8,
    batch_groups: Annotated[int, typer.Option(min=1, help="Groups of a training step.")] = 2048,
    policies: Annotated[int, typer.Option(min=1, help="Trained together.")] = 1,
    max_staleness: Annotated[int, typer.Option(min=0, help="The bound, in steps.")] = 2,
    mean_s: Annotated[float, typer.Option(min=0.001, help="Mean duration of an episode, log-normal.")] = 10.0,
    sigma: Annotated[float, typer.Option(min=0.0, help="Standard deviation of its logarithm.")] = 0.8,
    latencies: Annotated[
        Path | None,
        typer.Option(metavar="RUN|FILE", help="Measured durations instead: a run's, or seconds, one a line."),
    ] = None,
    step_s: Annotated[float, typer.Option(min=0.0, help="Duration of a training step.")] = 5.0,
    slow_share: Annotated[float, typer.Option(min=0.0, max=1.0, help="Part of the services that are slow.")] = 0.1,
    slow_factor: Annotated[float, typer.Option(min=1.0, help="How many times slower.")] = 4.0,
    mishap_every_s: Annotated[
        float, typer.Option(min=0.0, help="Seconds between joins, leaves, deaths and silences; 0: none.")
    ] = 2.0,
    restarts: Annotated[bool, typer.Option(help="Dataflow and trainers die too, and bad requests come in.")] = False,
    mishap: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this mishap befalls it; may be given several times.")
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same run.")] = 1,
    explore: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Instead: try many small runs, in every order of events.")
    ] = None,
    json: Json = None,
) -> None:
    """Run Dataflow itself in virtual time among simulated services and trainers; exit code 1 on a violation."""
    command = _command("simulate")
    if explore is not None:
        command.explore_small(explore, seed, mishap or [], json)
        return
    scenario = command.scenario_of(
        raas=raas,
        concurrency=concurrency,
        episodes=episodes,
        n_samples=n_samples,
        batch_groups=batch_groups,
        policies=policies,
        max_staleness=max_staleness,
        mean_s=mean_s,
        sigma=sigma,
        step_s=step_s,
        slow_share=slow_share,
        slow_factor=slow_factor,
        mishap_every_s=mishap_every_s,
        restarts=restarts,
        mishaps=mishap or [],
    )
    command.run(scenario, latencies, seed, json)


@bench.command("async")
def bench_async(
    inputs: Inputs,
    seeds: Annotated[str, typer.Option(help="Seeds, comma-separated.")] = "1,2,3",
    json: Json = None,
) -> None:
    """Compare staleness bound 2 with synchronous training, with and without an artificial wait."""
    _command("bench_async").bench_async(inputs, seeds, json)


@bench.command("weights")
def bench_weights(
    model: Annotated[
        str, typer.Option(help="Whose optimiser steps are measured: a preset or a Hugging Face directory.")
    ] = "tiny-3m",
    density: Annotated[
        str, typer.Option(help="Shares of changed elements in percent, comma-separated.")
    ] = "0.4,1,5,20",
    megabytes: Annotated[int, typer.Option(min=1, help="Size of the bfloat16 version that is moved.")] = 540,
    json: Json = None,
) -> None:
    """Measure weight transfer against a memory copy, a plain loopback peer, full copies and a slow line."""
    _command("bench_weights").bench_weights(model, density, megabytes, json)


@bench.command("dataflow")
def bench_dataflow(
    seconds: Annotated[float, typer.Option(help="How long the throughput is measured.", min=0.1)] = 10.0,
    durable: Annotated[bool, typer.Option(help="With the ledger on disk, or in memory.")] = True,
    json: Json = None,
) -> None:
    """Measure episodes/s through Dataflow, the time of a batch, memory, and the ledger's cost of a group."""
    _command("bench_dataflow").bench_dataflow(seconds, durable, json)


@config.command("explain")
def config_explain(
    key: Annotated[str, typer.Argument(metavar="KEY", help="A path, the end of one, or a section.")],
    inputs: Annotated[list[str] | None, typer.Argument(metavar="[FILE...] [KEY=VALUE...]")] = None,
) -> None:
    """Say what a key is: type, default, docstring, who reads it; with files its value and where that was set."""
    _command("config").explain(key, inputs or [])


@config.command("show")
def config_show(inputs: Inputs) -> None:
    """Print the resolved configuration, each key with where it was set."""
    _command("config").show(inputs)


@config.command("schema")
def config_schema() -> None:
    """Print the JSON schema of a configuration, for editors."""
    _command("config").print_schema()


@config.command("diff")
def config_diff(
    first: Annotated[Path, typer.Argument(metavar="A", help="A YAML file or a run directory.")],
    second: Annotated[Path, typer.Argument(metavar="B")],
) -> None:
    """Print the keys that two configurations differ in, defaults included."""
    _command("config").diff(first, second)


@inspect.command("version")
def inspect_version(
    number: Annotated[int, typer.Argument(metavar="N", help="The version's number.")],
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run directory.")],
    model: Annotated[str | None, typer.Option(help="Only this model.")] = None,
) -> None:
    """Show a weight version: digest, tensors and what changed in them, who served it, how it got there."""
    _command("weights").inspect_version(number, run, model)


@weights.command("verify")
def weights_verify(run: Annotated[Path, typer.Argument(metavar="RUN", help="Run directory.")]) -> None:
    """Check that every kept token, served version and checkpoint resolves to a published version; else exit 1."""
    _command("weights").verify_run(run)


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(installed_version("astraflow"))


def main() -> None:
    """Entry point: one line on stderr for a wrong input (exit code 2) or a failed run (exit code 1)."""
    log.open_closed_streams()
    try:
        with boundary(ConfigError, "the working directory"):
            here = os.getcwd()
        for argument in sys.argv[1:]:
            if not is_utf8(argument):
                raise ConfigError(f"argument {argument!a} is not UTF-8")
        sys.path.insert(0, here)  # a user's own datasets and rewards, as `python -m` would find them
        app()
    except ConfigError as error:
        _say(str(error))
        sys.exit(USER_ERROR)
    except AstraFlowError as error:
        _say(str(error))
        sys.exit(FAILURE)
    except UnicodeEncodeError as error:  # of a path that no argument named: the working directory, a home
        _say(f"{error.object!a} is not UTF-8")
        sys.exit(USER_ERROR)
    except OSError as error:  # the machine's fault: a disk that is full, a file that another user owns
        _say(str(error) if error.filename is None else f"{error.filename}: {error.strerror}")
        sys.exit(FAILURE)


def _command(name: str) -> ModuleType:
    """The module of a command: only the one that runs is loaded, so that help and refusals are quick."""
    return importlib.import_module(f"astraflow.cli.{name}")


def _say(text: str) -> None:
    typer.echo(f"astraflow: {text}", err=True)


if __name__ == "__main__":
    main()
