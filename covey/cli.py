"""The command line. Nothing here imports torch before a command needs it."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from covey.bench import BENCHES, bench
from covey.errors import UserError, nearest

EXIT_USAGE = 2
RUN_HELP = "folder, end of its name (3, ppo-serial-3), or nothing: the newest"
FLAGS = {  # settings that have a flag of their own
    "steps": "env steps at most",
    "until": "greedy return to stop at",
    "seed": "root of all random numbers",
    "num-envs": "environments",
    "workers": "processes that act and learn",
    "actors": "processes that only act",
    "learners": "processes that learn together",
    "device": "torch device of the learner",
}
EXIT_CODES = {"interrupted": 130, "terminated": 143, "requeue": 75}


class Parser(argparse.ArgumentParser):
    """argparse, with mistakes told as ours are."""

    def error(self, message: str) -> NoReturn:
        """One sentence instead of the usage."""
        raise UserError(f"{message}. Help: {self.prog} --help")


def parser() -> Parser:
    """All commands and their options."""
    top = Parser(
        prog="covey", allow_abbrev=False,
        description="Train reinforcement-learning agents on one core, one machine or a cluster.",
        epilog="Example: covey train ppo CartPole-v1",
    )  # fmt: skip
    top.add_argument("--version", action="store_true", help="print the version")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)

    def command(name: str, run: Callable[[argparse.Namespace], int], help_: str) -> Parser:
        sub: Parser = commands.add_parser(name, help=help_, description=help_, allow_abbrev=False)
        sub.set_defaults(run=run)
        sub.add_argument("--debug", action="store_true", help="show the traceback of an error")
        return sub

    train = command("train", _train, "train an algorithm on an environment")
    _add_choices(train)
    train.add_argument("--out", type=Path, metavar="DIR", help="folder of this run; must be new")
    train.add_argument("--quiet", action="store_true", help="print nothing")

    resume = command("resume", _resume, "go on with a run, bit for bit where that is possible")
    _add_run(resume)
    resume.add_argument("--steps", type=_whole, help="a new total of env steps")
    resume.add_argument("--until", type=float, metavar="RETURN", help="a new return to stop at")
    resume.add_argument("--quiet", action="store_true", help="print nothing")

    evaluate = command("eval", _eval, "play greedy episodes with a run's newest weights")
    _add_run(evaluate)
    evaluate.add_argument("--episodes", type=_whole, default=20, help="how many (20)")
    evaluate.add_argument("--seed", type=int, help="of the environments")
    evaluate.add_argument("--json", action="store_true", help="print JSON")

    plot = command("plot", _plot, "draw the curve of a run, or of several in one picture")
    plot.add_argument(
        "runs", nargs="*", metavar="RUN", help="folder, end of its name, or nothing: newest"
    )
    plot.add_argument("--out", type=Path, metavar="FILE", help="where to write the PNG")

    show = command("show-config", _show_config, "print every value a run would use, as TOML")
    _add_choices(show)
    command("list", _list, "algorithms, recipes, engines, presets and runs")
    doctor = command("doctor", _doctor, "what is installed and what this machine has")
    doctor.add_argument("--json", action="store_true", help="print JSON")
    check = command("check-env", _check_env, "try an environment and say what it is")
    check.add_argument("env", help="gymnasium id, or module:id")
    check.add_argument("--json", action="store_true", help="print JSON")
    measure = command("bench", _bench, "measure this machine: each figure as a ratio to its limit")
    measure.add_argument("name", help=f"which: {', '.join(BENCHES)}")
    measure.add_argument("--set", action="append", default=[], metavar="NAME=VALUE",
                         dest="settings", help="such as seconds=60")  # fmt: skip
    measure.add_argument("--json", action="store_true", help="print JSON")
    return top


def _whole(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number of at least 1")
    return int(text)


def _add_choices(sub: Parser) -> None:
    sub.add_argument("algo", nargs="?", help="algorithm, see `covey list`")
    sub.add_argument("env", nargs="?", help="gymnasium environment id")
    sub.add_argument("--recipe", help="what flows between processes (serial)")
    sub.add_argument("--engine", help="where processes are (inline)")
    sub.add_argument("--config", type=Path, metavar="FILE", help="TOML file with settings")
    sub.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", dest="settings",
                     help="any setting; may be repeated")  # fmt: skip
    for name, help_ in FLAGS.items():
        sub.add_argument(f"--{name}", metavar=name.upper(), help=help_)


def _add_run(sub: Parser) -> None:
    sub.add_argument("run_name", nargs="?", metavar="RUN", help=RUN_HELP)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status comes back."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _run(words)
    except UserError as error:
        if "--debug" in words:
            raise
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _run(words: list[str]) -> int:
    top = parser()
    names = list(top._subparsers._group_actions[0].choices)  # type: ignore[union-attr,arg-type]
    if words and not words[0].startswith("-") and words[0] not in names:
        raise UserError(f"unknown command '{words[0]}'. {nearest(words[0], names)}")
    args, unknown = top.parse_known_args(words)
    if args.command is None and not unknown:
        if args.version:
            from importlib.metadata import version

            print(f"covey {version('covey')}")
        else:
            top.print_help()
        return 0
    if unknown:
        known = _options(top, args.command)
        what = "option" if unknown[0].startswith("-") else "argument"
        hint = nearest(unknown[0].partition("=")[0], known) if what == "option" else ""
        raise UserError(f"unknown {what} '{unknown[0]}'. {hint} Help: covey {args.command} --help")
    status: int = args.run(args)
    return status


def _options(top: Parser, command: str | None) -> list[str]:
    commands = top._subparsers._group_actions[0].choices  # type: ignore[union-attr]
    sub = commands.get(command, top)  # type: ignore[union-attr]
    return [word for action in sub._actions for word in action.option_strings]


def _configured(args: argparse.Namespace) -> Any:
    from covey.config import parse_assignments, read_toml
    from covey.training import configured

    names = [flag.replace("-", "_") for flag in FLAGS]
    given = {name: getattr(args, name) for name in names}
    flags = [f"{name}={value}" for name, value in given.items() if value is not None]
    file = read_toml(args.config) if args.config is not None else None
    settings = parse_assignments([*args.settings, *flags])
    return configured(args.algo, args.env, args.recipe, args.engine, settings, file)


def _train(args: argparse.Namespace) -> int:
    config = _configured(args)
    from covey.runs import Run
    from covey.training import Start, check_device

    check_device(config.device)
    return _run_all(Start(config, Run.create(config, args.out), config.env), args.quiet)


def _resume(args: argparse.Namespace) -> int:
    from covey.runs import find
    from covey.training import reopened

    return _run_all(reopened(find(args.run_name), args.steps, args.until), args.quiet)


def _run_all(start: Any, quiet: bool) -> int:
    """Train, say how it ended and what to type next."""
    from covey.training import run_all

    result = run_all(start, quiet)
    code = EXIT_CODES.get(result.reason, 0)
    if code:
        print(
            f"{result.reason}: checkpoint saved at env step {result.env_steps:,}. "
            f"Go on with: covey resume {result.folder}", file=sys.stderr,
        )  # fmt: skip
    elif not quiet:
        found = result.evaluation
        how = "solved" if result.reason == "solved" else "done  "
        score = "" if found is None else (
            f"return {found.return_mean:.1f} +- {found.return_std:.1f} over "
            f"{len(found.returns)} greedy episodes, "
        )  # fmt: skip
        print(
            f"{how} {score}{result.env_steps:,} env steps, {result.seconds:.1f} s\n"
            f"next   covey plot {result.folder} | covey eval {result.folder}"
        )
    return code


def _eval(args: argparse.Namespace) -> int:
    from covey.training import evaluate

    found = evaluate(args.run_name, episodes=args.episodes, seed=args.seed)
    if args.json:
        print(json.dumps(found))
    else:
        print(
            f"{found['run']} at env step {found['env_steps']:,}: return {found['return_mean']:.2f} "
            f"+- {found['return_std']:.2f} over {found['episodes']} greedy episodes "
            f"({found['return_min']:.4g} to {found['return_max']:.4g})"
        )
    return 0


def _plot(args: argparse.Namespace) -> int:
    from covey.runs import find
    from covey.training import saved_config
    from covey.views.plot import draw, run_curves

    folders = [find(name) for name in args.runs or [None]]
    curves = [
        curve
        for folder in folders
        for curve in run_curves(folder, f"{folder.name}: " if len(folders) > 1 else "")
    ]
    config = saved_config(folders[0])
    title = f"{config.algo} ({config.recipe}) on {config.env}" if len(folders) == 1 else config.env
    path = args.out or folders[0] / "curve.png"
    try:
        path.write_bytes(draw(curves, title, "env steps"))
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}. Choose another --out.") from None
    print(path)
    return 0


def _show_config(args: argparse.Namespace) -> int:
    from covey.config import to_toml

    print(to_toml(_configured(args), comments=True), end="")
    return 0


def _list(args: argparse.Namespace) -> int:
    from covey import catalog

    print("algorithms")
    for name, found in _loadable("algorithm", catalog.ALGORITHMS):
        print(
            f"  {name:<8} {' or '.join(found.actions):<24} on {', '.join(found.recipes):<22} "
            f"{_first_line(found)}"
        )
    print("recipes")
    for name, _ in _loadable("recipe", catalog.RECIPES):
        print(f"  {name:<8} {catalog.recipe(name).what}")
    print("engines")
    for name, path in catalog.ENGINES.items():
        what = (import_module(path.partition(":")[0]).__doc__ or "").partition("\n")[0]
        print(f"  {name:<10} {what}")
    print("presets")
    for env, algos in catalog.presets().items():
        print(f"  {env:<20} {', '.join(algos)}")
    folders = sorted(c.parent for c in Path("runs").glob("*/*/config.toml"))
    print("runs" if folders else "runs    none yet: covey train ppo CartPole-v1")
    for folder in folders:
        print(f"  {folder}")
    return 0


def _loadable(kind: str, known: dict[str, str]) -> Iterator[tuple[str, Any]]:
    from covey import catalog

    for name in catalog.names(kind, known):
        try:
            yield name, catalog.find(kind, name, known)
        except UserError as error:
            print(f"  {name:<8} {error}")


def _first_line(found: Any) -> str:
    return (found.__doc__ or "").strip().partition("\n")[0]


def _doctor(args: argparse.Namespace) -> int:
    from covey.doctor import examine, tell

    found = examine()
    print(json.dumps(found, indent=1) if args.json else tell(found))
    return 0 if found["ok"] else 1


def _check_env(args: argparse.Namespace) -> int:
    from covey.check import explore

    found = explore(args.env)
    if args.json:
        print(json.dumps(found._asdict()))
        return 0
    print(
        f"{found.name}: ok\n"
        f"  observations   {found.observations}\n"
        f"  actions        {found.actions}\n"
        f"  stepped        {found.how}; {found.episodes} episodes in 200 random steps\n"
        f"  deterministic  {'yes' if found.deterministic else 'no: a seed does not repeat'}\n"
        f"  exact resume   "
        f"{'yes' if found.restorable else 'no: a resumed run begins new episodes'}"
    )
    return 0


def _bench(args: argparse.Namespace) -> int:
    from covey.config import parse_assignments

    figures = bench(args.name, parse_assignments(args.settings))()
    if args.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:<44} {value:14,.3f}")
    return 0
