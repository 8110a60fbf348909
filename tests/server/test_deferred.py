"""Commands of a live session that wait for their turn."""

from vivavoce_server.live.deferred import COMMAND_COST_CHARS, DeferredCommands


def test_commands_run_in_order_while_it_is_their_turn() -> None:
    ran: list[int] = []
    commands = DeferredCommands(1000)
    for number in range(4):
        assert commands.add(lambda number=number: ran.append(number), 0)  # type: ignore[misc]
    commands.run_while(lambda: len(ran) < 3)
    assert ran == [0, 1, 2]
    commands.run_while(lambda: True)
    commands.run_while(lambda: True)
    assert ran == [0, 1, 2, 3]


def test_a_command_that_runs_the_commands_changes_no_order() -> None:
    ran: list[str] = []
    commands = DeferredCommands(1000)

    def first() -> None:
        commands.run_while(lambda: True)
        ran.append("first")

    commands.add(first, 0)
    commands.add(lambda: ran.append("second"), 0)
    commands.run_while(lambda: True)
    assert ran == ["first", "second"]


def test_the_text_that_waits_is_limited_until_all_has_run() -> None:
    commands = DeferredCommands(2 * COMMAND_COST_CHARS + 10)
    assert commands.add(lambda: None, 10)
    assert not commands.add(lambda: None, 1)
    assert commands.add(lambda: None, 0)
    assert not commands.add(lambda: None, 0)
    commands.run_while(lambda: True)
    assert commands.add(lambda: None, COMMAND_COST_CHARS + 10)
    commands.clear()
    assert commands.add(lambda: None, COMMAND_COST_CHARS + 10)
