"""The promises about the code itself: sizes, imports, names, and the path of one transition."""

import ast
import os
import statistics
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import covey

ROOT = Path(covey.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
TESTS = Path(__file__).parent


def code_lines(tree, source):
    """Line numbers that are neither blank, comment nor docstring."""
    documented = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                documented.update(range(first.lineno, first.end_lineno + 1))
    lines = enumerate(source.splitlines(), 1)
    return {
        n
        for n, line in lines
        if n not in documented and line.strip(" #") and line.strip()[0] != "#"
    }


@cache
def parsed():
    found = []
    for path in FILES:
        source = path.read_text()
        tree = ast.parse(source)
        found.append((path, tree, code_lines(tree, source)))
    return found


def functions():
    for path, tree, lines in parsed():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                own = sum(node.lineno <= n <= node.end_lineno for n in lines)
                yield f"{path.name}:{node.name}", node, own


def test_files_are_short():
    assert {p.name: len(lines) for p, _, lines in parsed() if len(lines) > 300} == {}


def test_functions_are_short():
    sizes = {name: own for name, _, own in functions()}
    assert {name: own for name, own in sizes.items() if own > 60} == {}
    assert statistics.quantiles(sizes.values(), n=20)[-1] <= 30
    assert statistics.median(sizes.values()) <= 8


def nesting(node, depth=0):
    deeper = isinstance(node, ast.If | ast.For | ast.While | ast.With | ast.Try)
    inner = [nesting(child, depth + deeper) for child in ast.iter_child_nodes(node)]
    return max([depth + deeper, *inner])


def test_nesting_is_shallow():
    assert {name: nesting(node) for name, node, _ in functions() if nesting(node) > 4} == {}


def test_everything_is_typed():
    for name, node, _ in functions():
        arguments = [*node.args.args, *node.args.kwonlyargs, *node.args.posonlyargs]
        bare = [a.arg for a in arguments if a.annotation is None and a.arg not in ("self", "cls")]
        assert not bare, (name, bare)
        assert node.returns is not None or node.name == "__init__", name


def test_no_class_inherits_from_one_of_ours_to_share_code():
    ours = {
        n.name: n for _, tree, _ in parsed() for n in ast.walk(tree) if isinstance(n, ast.ClassDef)
    }
    for name, node in ours.items():
        bases = {getattr(b, "id", getattr(b, "attr", "")) for b in node.bases}
        inherited = set() if "Protocol" in bases else (bases & set(ours)) - {"UserError"}
        assert not inherited, (name, inherited)


def test_no_forbidden_names():
    bad = ("Manager", "Helper", "Util", "Base", "Impl", "Factory", "Wrapper")
    names = [
        n.name for _, tree, _ in parsed() for n in ast.walk(tree) if isinstance(n, ast.ClassDef)
    ]
    assert not [n for n in names if n.endswith(bad) or n.startswith(bad)]
    assert not [p.name for p in FILES if any(b.lower() in p.stem for b in bad if b != "Base")]


MATHS = {"returns", "losses", "explore", "dists", "optim", "nets", "critics", "infer"}
LOW = {"types", "errors", "config"}
# what each layer may import of covey; a layer not named here may import everything
ALLOWED = {
    "types": set(),
    "errors": set(),
    "config": {"errors"},
    **{name: MATHS | LOW for name in MATHS},
    "onpolicy": MATHS | LOW,
    "dpg": MATHS | LOW,
    "algos": MATHS | LOW | {"onpolicy", "dpg"},
    "memory": LOW,
    "links": LOW | {"memory"},
    "apply": MATHS | LOW | {"links", "memory"},
    "steps": LOW | {"task", "envs", "evaluation", "links", "memory"},
    "engines": LOW | {"team", "links", "memory"},
    "task": LOW | {"links", "memory"},
    "spaces": LOW,
    "attributes": LOW,
    "vector": LOW | {"attributes", "spaces", "memory"},
    "envs": LOW | {"spaces", "vector", "memory"},
    "checkpoint": LOW,
    "recipes": LOW | {"steps", "envs", "task", "team", "session"},
}
WARM = ROOT / "engines" / "warm.py"  # does once what every actor would do


def imported(tree):
    """What runs; what is only named in annotations crosses no border."""
    named = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in named:
            continue
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("covey"):
            module = node.module.split(".")
            yield from [module[1]] if len(module) > 1 else [alias.name for alias in node.names]


def test_imports_point_one_way():
    for path, tree, _ in parsed():
        part = path.relative_to(ROOT).parts[0].removesuffix(".py")
        if part in ALLOWED and path != WARM:
            wrong = set(imported(tree)) - ALLOWED[part] - {part}
            assert not wrong, (path.name, wrong)


def test_public_names_are_these():
    assert covey.__all__ == [*sorted(set(covey.__all__) - {"steps"}), "steps"]
    for name in covey.__all__:
        assert getattr(covey, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = covey.trian


def test_importing_covey_imports_nothing_heavy():
    check = "import sys, covey; assert not {'torch', 'numpy', 'gymnasium'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", check], check=True)


def test_training_does_not_import_torchs_compiler(tmp_path):
    check = (
        "import sys, covey; covey.train('ppo', 'CartPole-v1', steps=300, quiet=True, out='r');"
        "assert 'torch._dynamo' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", check], check=True, cwd=tmp_path)


def test_every_module_has_a_test_of_its_name():
    tests = {str(p.relative_to(TESTS)) for p in TESTS.rglob("test_*.py")}
    elsewhere = {"__init__.py", "__main__.py"}
    modules = [p.relative_to(ROOT) for p in FILES if p.name not in elsewhere]
    missing = [str(m) for m in modules if str(m.with_name(f"test_{m.name}")) not in tests]
    assert not missing


def test_tests_outweigh_the_source():
    def count(paths):
        return sum(len(code_lines(ast.parse(p.read_text()), p.read_text())) for p in paths)

    assert count(TESTS.rglob("*.py")) >= count(FILES)


def test_the_path_of_one_transition_is_short(tmp_path):
    """From env.step to optimizer.step, serial DQN with report and checkpoints on."""
    from covey.envs import Envs
    from covey.optim import Optimizer

    entered, files, stacks, tracing = set(), set(), [], [False]

    def spy(frame, event, _):
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(f"{ROOT}{os.sep}"):
            return
        if code is Envs.step.__code__ and not stacks:  # the last one before the first update
            tracing[0] = True
            entered.clear()
            files.clear()
        if not tracing[0]:
            return
        entered.add((code.co_filename, code.co_qualname))
        files.add(code.co_filename)
        if code is Optimizer.step.__code__:
            depth, up = 0, frame.f_back  # those that lead to the optimizer, as with torch's own
            while up is not None:
                depth += up.f_code.co_filename.startswith(f"{ROOT}{os.sep}")
                up = up.f_back
            stacks.append(depth)
            tracing[0] = False

    before = sys.getprofile()
    sys.setprofile(spy)
    try:
        covey.train(
            "dqn", "CartPole-v1", out=tmp_path / "run", quiet=True, steps=96, warmup=8,
            unroll=1, num_envs=8, eval_every=0, checkpoint_every=8, eval_episodes=1, until=None,
        )  # fmt: skip
    finally:
        sys.setprofile(before)
    assert stacks, "no optimizer step was seen"
    assert not [f for f in files if f.endswith("check.py")], "the trace began before training"
    assert len(files) <= 9, " ".join(sorted(Path(f).name for f in files))
    assert len(entered) <= 30, " ".join(sorted(name for _, name in entered))
    assert stacks[0] <= 5
