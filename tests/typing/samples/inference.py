"""What the checkers infer: every line here is right."""

from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

from fleet import Context, Fleet, Handle, Job, To

app = Fleet()


@dataclass
class Animal:
    name: str


@dataclass
class Cat(Animal):
    lives: int = 9


# app.job() is Job[Any, Any] and takes a declared Job[I, O].

assert_type(app.job("plain"), Job[Any, Any])
declared: Job[Animal, Cat] = app.job("declared")


# The decorator form infers Job[I, O]: async def and def, with and without an input.


@app.job("a")
async def async_input(ctx: Context, animal: Animal) -> Cat:
    raise NotImplementedError


@app.job("b")
async def async_alone(ctx: Context) -> int:
    raise NotImplementedError


@app.job("c")
def plain_input(ctx: Context, animal: Animal) -> Cat:
    raise NotImplementedError


@app.job("d")
def plain_alone(ctx: Context) -> None: ...


assert_type(async_input, Job[Animal, Cat])
assert_type(async_alone, Job[None, int])
assert_type(plain_input, Job[Animal, Cat])
assert_type(plain_alone, Job[None, None])


# What To carries is what comes back.


@app.job("e")
async def async_to(ctx: Context, animal: Animal) -> To[Cat]:
    raise NotImplementedError


@app.job("f")
async def async_either(ctx: Context, animal: Animal) -> Cat | To[Cat]:
    raise NotImplementedError


@app.job("g")
def plain_to(ctx: Context) -> To[None]:
    raise NotImplementedError


@app.job("h")
def plain_either(ctx: Context, n: int) -> str | To[str]:
    raise NotImplementedError


@app.job("i")
async def optional(ctx: Context, n: int) -> str | None:
    raise NotImplementedError


assert_type(async_to, Job[Animal, Cat])
assert_type(async_either, Job[Animal, Cat])
assert_type(plain_to, Job[None, None])
assert_type(plain_either, Job[int, str])
assert_type(optional, Job[int, str | None])


# To[T] is covariant, and what never ends here fits every To.


def ways(n: int) -> To[Animal]:
    if n == 0:
        return To.next(Cat("tom"))
    if n == 1:
        return To.done(Cat("tom"))
    if n == 2:
        return To.step("other", 1, delay=timedelta(seconds=1))
    return To.snooze(5)


cats: To[Cat] = To.done(Cat("tom"))
animals: To[Animal] = cats
assert_type(To.done(), To[None])
assert_type(To.next(1), To[int])


# A decorated step stays callable with its own type.


@declared.step
async def first(ctx: Context, animal: Animal) -> Cat:
    return Cat(animal.name)


@declared.step(name="second", timeout=timedelta(minutes=1), key=lambda cat: cat.name)
def second(ctx: Context, cat: Cat) -> Cat:
    return cat


as_coroutine: Callable[[Context, Animal], Coroutine[Any, Any, Cat]] = first
as_function: Callable[[Context, Cat], Cat] = second
fn: Callable[..., Any] = async_input.fn


async def uses(ctx: Context) -> None:
    assert_type(await first(ctx, Animal("tom")), Cat)
    assert_type(second(ctx, Cat("tom")), Cat)
    assert_type(await async_input.enqueue(Cat("tom")), Handle[Cat])
    assert_type(await async_alone.enqueue(), Handle[int])
    assert_type(await async_alone.enqueue(priority=1), Handle[int])
    assert_type(await async_input.enqueue_many([Cat("tom")]), list[Handle[Cat]])
    handle = await async_input.enqueue(
        Animal("tom"), at=datetime.now(UTC), unique="tom", unique_scope="while_waiting", queue="q"
    )
    assert_type(await handle.result(), Cat)
    wider: Handle[Animal] = handle
    assert_type((await wider.result(timeout=1)).name, str)
    sql, params = async_input.statement(Animal("tom"), style="psycopg", delay=1)
    assert_type(sql, str)
    await app.job("anything").enqueue(7)
    _: Awaitable[Handle[None]] = plain_alone.enqueue()
    assert params
