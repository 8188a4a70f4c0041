import pytest

from fleet.store.dialect import render


def test_asyncpg_takes_a_statement_as_it_is():
    assert render("select $1::int, $2", [1, "a"], "asyncpg") == ("select $1::int, $2", (1, "a"))


def test_psycopg_gets_named_places_and_doubled_percent_signs():
    sql, params = render("select $1::text[]::interval[], 7 % $2, 'a%'", [["5 s"], 2], "psycopg")

    assert sql == "select %(p1)s::text[]::interval[], 7 %% %(p2)s, 'a%%'"
    assert params == {"p1": ["5 s"], "p2": 2}


def test_text_gets_casts_that_it_can_read():
    sql, params = render("select $1::text[]::interval[], $2::fleet.name, $3", [1, 2, 3], "named")

    assert sql == "select cast(:p1 as text[])::interval[], cast(:p2 as fleet.name), :p3"
    assert params == {"p1": 1, "p2": 2, "p3": 3}


def test_text_does_not_mistake_a_colon_in_a_literal_for_a_parameter():
    assert render("select ':x', 'a:b', now()::date", [], "named")[0] == (
        r"select '\:x', 'a\:b', now()::date"
    )


def test_the_tenth_parameter_is_not_the_first_with_a_zero():
    places = ", ".join(f"${n}" for n in range(1, 12))
    assert render(f"select {places}", list(range(1, 12)), "psycopg")[0].endswith("%(p10)s, %(p11)s")


def test_a_parameter_may_stand_twice():
    assert render("select $1, $1::int", [1], "psycopg") == (
        "select %(p1)s, %(p1)s::int",
        {"p1": 1},
    )


def test_parameters_can_have_names_that_read_well():
    assert render("select $1::text", ["x"], "named", ["job"]) == (
        "select cast(:job as text)",
        {"job": "x"},
    )


@pytest.mark.parametrize("style", ["psycopg", "named"])
def test_more_values_than_names_is_a_mistake_of_ours(style):
    with pytest.raises(ValueError, match="zip"):
        render("select $1", [1, 2], style, ["only"])
