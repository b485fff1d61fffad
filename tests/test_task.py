"""The task, case by case: how a list of steps with back halves goes wrong (4.1 to 4.21)."""

import threading
import time

import pytest

import covey
from covey.task import Ctx, Shared, Task, declare, serial


def recorder(log, name):
    def step(ctx):
        log.append(name)

    step.__name__ = name
    return step


def two_halves(log, name):
    def step(ctx):
        log.append(name)
        yield
        log.append(name.upper())

    step.__name__ = name
    return step


def test_two_tasks_live_side_by_side_and_inside_each_other():  # 4.1: no global task
    log = []
    inner = Task()
    inner.use(recorder(log, "inner"))
    outer = Task()
    outer.use(recorder(log, "outer"))
    outer.use(lambda ctx: inner.run(rounds=inner.state()["rounds"] + 1))
    assert outer.run(rounds=2) == "rounds"
    assert log == ["outer", "inner", "outer", "inner"]
    assert inner.state()["rounds"] == outer.state()["rounds"] == 2


def test_steps_are_functions_closures_methods_and_callable_objects():  # 4.2
    class Step:
        def __call__(self, ctx):
            ctx.total += 1

        def method(self, ctx):
            ctx.total += 10

    task = Task()
    task.keep("total", 0)
    task.use(Step()).use(Step().method).use(lambda ctx: setattr(ctx, "total", ctx.total + 100))
    task.run(rounds=1)
    assert task.state()["total"] == 111


def test_a_declared_read_without_a_writer_is_an_error_before_the_first_round():  # 4.2
    ran = []
    task = Task()
    task.use(declare(lambda ctx: ran.append(1), reads=["batch"], writes=[]))
    with pytest.raises(covey.UserError, match=r"reads ctx\.batch, but no step writes it"):
        task.run(rounds=1)
    assert not ran


def test_a_declared_read_before_its_writer_is_an_error():
    task = Task()
    task.use(declare(lambda ctx: None, reads=["batch"], writes=[]))
    task.use(declare(lambda ctx: None, reads=[], writes=["batch"]))
    with pytest.raises(covey.UserError, match="a later step writes it"):
        task.run(rounds=1)


def test_a_read_whose_writer_runs_on_another_role_is_named():
    task = Task(roles=["learner"])
    task.use(declare(lambda ctx: None, reads=[], writes=["unroll"]), on="actor")
    task.use(declare(lambda ctx: None, reads=["unroll"], writes=[]), on="learner")
    with pytest.raises(covey.UserError, match=r"Steps on \['actor'\] run elsewhere"):
        task.run(rounds=1)


def test_backs_run_in_reverse_after_all_fronts():  # 4.3
    log = []
    task = Task()
    task.use(two_halves(log, "a")).use(recorder(log, "b")).use(two_halves(log, "c"))
    task.run(rounds=2)
    assert log == ["a", "b", "c", "C", "A"] * 2


def test_a_second_yield_is_an_error_that_names_the_step():  # 4.3: it never ran there
    def greedy(ctx):
        yield
        yield

    with pytest.raises(covey.UserError, match="step greedy yields more than once"):
        Task().use(greedy).run(rounds=1)


def test_a_step_may_return_before_its_yield():
    log = []

    def maybe(ctx):
        if ctx.rounds == 0:
            return
        log.append("front")
        yield
        log.append("back")

    Task().use(maybe).run(rounds=2)
    assert log == ["front", "back"]


def test_backs_see_the_exception_of_what_they_wrap_and_finally_is_honoured():  # 4.3
    log = []

    def sees(ctx):
        try:
            yield
        except KeyError as error:
            log.append(error)
            raise
        finally:
            log.append("finally")

    def fails(ctx):
        raise KeyError("lost")

    with pytest.raises(KeyError, match="lost") as caught:
        Task().use(sees).use(fails).use(recorder(log, "never")).run(rounds=1)
    assert log == [caught.value, "finally"]


def test_a_back_half_may_deal_with_an_exception():
    def forgives(ctx):
        try:
            yield
        except KeyError:
            ctx.forgiven += 1

    def fails(ctx):
        raise KeyError

    task = Task()
    task.keep("forgiven", 0)
    assert task.use(forgives).use(fails).run(rounds=3) == "rounds"
    assert task.state()["forgiven"] == 3


def test_an_exception_in_a_back_half_reaches_the_backs_outside_it():
    log = []

    def outer(ctx):
        try:
            yield
        except ZeroDivisionError:
            log.append("outer saw it")
            raise

    def inner(ctx):
        yield
        _ = 1 / 0

    with pytest.raises(ZeroDivisionError):
        Task().use(outer).use(inner).run(rounds=1)
    assert log == ["outer saw it"]


def test_ctx_is_new_every_round():  # 4.4
    seen = []

    def step(ctx):
        seen.append(ctx.get("mark"))
        ctx.mark = ctx.rounds

    Task().use(step).run(rounds=3)
    assert seen == [None, None, None]


def test_reading_what_was_not_written_says_what_to_do():
    with pytest.raises(AttributeError, match=r"ctx\.bacth has not been written.*keep") as caught:
        Task().use(lambda ctx: setattr(ctx, "batch", 1)).use(lambda ctx: ctx.bacth).run(rounds=1)
    assert "'batch'" in str(caught.value)


def test_kept_once_is_kept_for_ever():  # 4.5: there, 7 7 0 0
    seen = []

    def step(ctx):
        if ctx.rounds == 0:
            ctx.iteration = 7
        seen.append(ctx.iteration)

    task = Task()
    task.keep("iteration", 0)
    task.use(step).run(rounds=5)
    assert seen == [7] * 5


def test_stop_ends_after_the_round_with_its_first_reason():  # 4.6
    log = []
    task = Task()
    task.use(two_halves(log, "a"))
    task.use(lambda ctx: task.stop("enough") if ctx.rounds == 2 else None)
    task.use(lambda ctx: task.stop("too late"))
    task.use(recorder(log, "b"))
    assert task.run(rounds=1) == "too late"
    assert log == ["a", "b", "A"]


def test_stop_is_sticky():
    task = Task()
    task.use(lambda ctx: task.stop("done"))
    assert task.run() == "done"
    assert task.run(rounds=100) == "done"
    assert task.state()["rounds"] == 1


def test_stop_works_from_a_back_half_and_from_another_thread():
    task = Task()

    def back(ctx):
        yield
        task.stop("from the back")

    assert task.use(back).run() == "from the back"
    other = Task()
    other.use(lambda ctx: time.sleep(0.001))
    threading.Timer(0.02, other.stop, ["from a thread"]).start()
    assert other.run() == "from a thread"


@pytest.mark.parametrize("limit", ["rounds", "updates", "env_steps"])
def test_limits_count_from_the_beginning_of_the_task(limit):
    task = Task()

    def step(ctx):
        ctx.updates += 1
        ctx.env_steps += 1

    task.use(step)
    assert task.run(**{limit: 3}) == limit
    assert task.run(**{limit: 3}) == limit
    assert task.state()["rounds"] == 3
    assert task.run(**{limit: 3}) == limit


def test_until_is_asked_after_every_round():
    task = Task()
    task.keep("total", 0)
    task.use(lambda ctx: setattr(ctx, "total", ctx.total + 2))
    assert task.run(until=lambda ctx: ctx.total >= 7) == "until"
    assert task.state()["total"] == 8


def test_every_step_is_timed_with_percentiles():  # 4.7
    def sleeps(ctx):
        time.sleep(0.002)
        yield
        time.sleep(0.004)

    task = Task()
    task.use(sleeps)
    task.run(rounds=10)
    timing = task.timings()["sleeps"]
    assert timing["count"] == 20  # front and back halves
    assert timing["total"] >= 10 * 0.006
    assert 0.002 <= timing["p50"] <= timing["p95"] <= timing["p99"] <= timing["total"]
    assert len(task.spans()) == 20
    assert all(began <= ended for _, began, ended in task.spans())


def test_an_overlapped_step_runs_beside_the_others_up_to_one_barrier():  # 4.8
    inside, log = threading.Event(), []

    def slow(ctx):
        assert inside.wait(5), "nothing ran beside it"
        ctx.found = 42
        log.append("slow")

    def beside(ctx):
        inside.set()

    def after(ctx):
        yield
        log.append(f"back sees {ctx.found}")

    with Task() as task:
        task.overlap(slow)
        task.use(beside).use(after)
        task.run(rounds=1)
    assert log == ["slow", "back sees 42"]


def test_an_overlapped_step_works_on_its_own_copy():  # 4.8: no race on ctx
    def slow(ctx):
        time.sleep(0.01)
        ctx.seen = ctx.value

    def fast(ctx):
        ctx.other = "changed beside it"

    with Task() as task:
        task.keep("value", "first")
        task.keep("seen", None)
        task.overlap(slow).use(fast)
        task.run(rounds=1)
        assert task.state()["seen"] == "first"


def test_a_failed_round_leaves_nothing_running_for_the_next():
    def fails_once(ctx):
        if not tried:
            tried.append(1)
            raise KeyError("once")

    tried, seen = [], []
    with Task() as task:
        task.overlap(lambda ctx: setattr(ctx, "found", ctx.rounds))
        task.use(fails_once).use(lambda ctx: seen.append(ctx.rounds))
        with pytest.raises(KeyError):
            task.run(rounds=1)
        assert task.run(rounds=2) == "rounds"
    assert seen == [0, 1]


def test_steps_of_one_name_are_timed_apart():
    task = Task()
    task.use(lambda ctx: None).use(lambda ctx: None).use(lambda ctx: None)
    task.run(rounds=3)
    assert [t["count"] for t in task.timings().values()] == [3, 3, 3]


def test_two_writers_of_one_value_in_a_round_are_an_error():
    with Task() as task:
        task.keep("value", 0)
        task.overlap(lambda ctx: setattr(ctx, "value", 1))
        task.use(lambda ctx: setattr(ctx, "value", 2))
        with pytest.raises(covey.UserError, match=r"ctx\.value was written by an overlapped step"):
            task.run(rounds=1)


def test_an_error_in_an_overlapped_step_stops_the_round():  # 4.17: not one emit later
    log = []

    def fails(ctx):
        raise ValueError("in the thread")

    def wraps(ctx):
        try:
            yield
        except ValueError:
            log.append("seen")
            raise

    with Task() as task:
        task.use(wraps).overlap(fails)
        with pytest.raises(ValueError, match="in the thread"):
            task.run(rounds=5)
        assert task.state()["rounds"] == 0
    assert log == ["seen"]


def test_an_overlapped_step_keeps_its_back_half():
    log = []
    with Task() as task:
        task.use(two_halves(log, "a")).overlap(two_halves(log, "b")).use(two_halves(log, "c"))
        task.run(rounds=1)
    assert log[-3:] == ["C", "B", "A"]
    assert sorted(log[:3]) == ["a", "b", "c"]


def test_leaving_the_task_leaves_no_thread():  # 4.10, 4.18
    before = threading.active_count()
    with Task() as task:
        task.overlap(lambda ctx: None).overlap(lambda ctx: time.sleep(0.001))
        task.run(rounds=3)
    assert threading.active_count() == before


def test_a_group_owns_its_back_halves():  # 4.9: it flushed the outer ones there
    log = []
    group = serial(two_halves(log, "b"), recorder(log, "c"), two_halves(log, "d"))
    assert group.__name__ == "b+c+d"
    Task().use(two_halves(log, "a")).use(group).use(two_halves(log, "e")).run(rounds=1)
    assert log == ["a", "b", "c", "d", "e", "E", "D", "B", "A"]


def test_groups_nest_and_pass_exceptions_through():
    log = []

    def sees(ctx):
        try:
            yield
        finally:
            log.append("closed")

    def fails(ctx):
        raise OSError("deep")

    with pytest.raises(OSError, match="deep"):
        Task().use(serial(sees, serial(sees, fails))).run(rounds=1)
    assert log == ["closed", "closed"]


def test_a_group_declares_what_its_steps_need_from_outside():
    one = declare(lambda ctx: None, reads=["a"], writes=["b"])
    two = declare(lambda ctx: None, reads=["b"], writes=["c"])
    group = serial(one, two)
    assert group.reads == {"a"}
    assert group.writes == {"b", "c"}


def test_shared_values_reach_other_roles_and_the_newest_wins():  # 4.11, 4.14
    shared = Shared()
    learner, actor = Task(["learner"], shared), Task(["actor"], shared)
    seen = []

    def learn(ctx):
        ctx.train_iter = ctx.rounds * 10

    learner.share("train_iter")
    learner.use(learn, on="learner")
    actor.use(lambda ctx: seen.append(ctx.shared.get("train_iter")), on="actor")
    actor.run(rounds=1)
    learner.run(rounds=3)
    actor.run(rounds=2)
    assert seen == [None, 20]
    with pytest.raises(AttributeError, match=r"ctx\.shared\.model has not been shared"):
        Task(None, shared).use(lambda ctx: ctx.shared.model).run(rounds=1)


def test_steps_run_on_their_roles_and_one_process_plays_all():  # 4.12, 4.13
    def build(roles):
        log, task = [], Task(roles)
        task.use(recorder(log, "actor"), on="actor")
        task.use(recorder(log, "learner"), on="learner")
        task.use(recorder(log, "both"))
        task.run(rounds=1)
        return log

    assert build(["actor"]) == ["actor", "both"]
    assert build(["learner"]) == ["learner", "both"]
    assert build(None) == ["actor", "learner", "both"]


def test_what_is_kept_is_saved_and_restored():  # 4.20
    task = Task()
    task.keep("note", "x")
    task.use(lambda ctx: setattr(ctx, "updates", ctx.updates + 5))
    task.run(rounds=2)
    again = Task()
    again.restore(task.state())
    again.use(lambda ctx: setattr(ctx, "updates", ctx.updates + 5))
    again.run(rounds=3)
    assert again.state() == {"rounds": 3, "env_steps": 0, "updates": 15, "version": 0, "note": "x"}


def test_an_action_after_the_round_sees_the_round_as_over():
    seen = []
    task = Task()
    task.use(lambda ctx: task.after_round(lambda: seen.append(task.state()["rounds"])))
    task.run(rounds=2)
    assert seen == [1, 2]


def test_what_is_not_a_step_is_refused():
    with pytest.raises(covey.UserError, match="a function of ctx"):
        Task().use(3)


def test_a_round_costs_microseconds():
    task = Task()
    task.use(lambda ctx: None).use(lambda ctx: None).use(lambda ctx: None)
    task.run(rounds=20_000)
    assert task.timings()["<lambda>"]["p50"] < 1e-3


def test_ctx_get_is_plain():
    assert Ctx(Shared(), {"a": 1}).get("a") == 1
    assert Ctx(Shared(), {}).get("a", 5) == 5
