"""What the checkers refuse: exactly the lines marked `# error` are wrong."""

from dataclasses import dataclass

from fleet import Context, Fleet, Job, Retry, To

app = Fleet()


@dataclass
class Animal:
    name: str


@dataclass
class Cat(Animal):
    lives: int = 9


@app.job("feed")
async def feed(ctx: Context, cat: Cat) -> int:
    raise NotImplementedError


@app.job("tick")
async def tick(ctx: Context) -> None: ...


job: Job[Cat, None] = app.job("job")


@job.step
async def step(ctx: Context, cat: Cat) -> None: ...


@app.job("no-context")  # error
def no_context(first: int, second: str) -> None: ...


@app.job("too-many")  # error
def too_many(ctx: Context, first: int, second: int) -> None: ...


async def uses(ctx: Context) -> None:
    await feed.enqueue(Animal("tom"))  # error
    await feed.enqueue({"name": "tom"})  # error
    await feed.enqueue()  # error
    await feed.enqueue_many([Animal("tom")])  # error
    await tick.enqueue(1)  # error
    await feed.enqueue(Cat("tom"), priority="high")  # error
    await feed.enqueue(Cat("tom"), prioritty=1)  # error
    await feed.enqueue(Cat("tom"), unique_scope="for_ever")  # error
    await step(ctx, Animal("tom"))  # error
    handle = await feed.enqueue(Cat("tom"))
    text: str = await handle.result()  # error
    feed.statement(Cat("tom"), style="sqlite")  # error
    feed.submission(7)  # error
    assert text


def narrower() -> To[Cat]:
    animal: To[Animal] = To.done(Animal("tom"))
    return animal  # error


def other() -> To[int]:
    return To.done("text")  # error


other_job: Job[Animal, int] = feed  # error
Retry(strategy="fibonacci")  # error
Retry(5)  # error
app.job("x", on_success="bury")  # error
app.job("y", timeout="30s")  # error
app.schedule("z", "@daily", tick, missed="some")  # error
