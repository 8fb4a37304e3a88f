"""Tickets: signed, bounded, of one job, and no longer valid than a job lasts."""

import re
from dataclasses import replace

import pytest

from ncclt.core.rollout import Variant
from ncclt.core.ticket import TICKET_PATTERN, Ticket, is_job_name, read_ticket, shorten_name, sign_ticket
from ncclt.errors import InputError

TICKET = Ticket(
    job="Slurm job 7",
    cluster="pair",
    model="toy",
    nodes=2,
    gpus_per_node=4,
    nccl_version="2.28.9",
    recommendation="b",
    variant=Variant.CANDIDATE,
    rollout="r",
    running=(0, 2),
    issued_s=1000.25,
    expires_s=2000.0,
)


def test_a_ticket_comes_back_as_it_was_until_it_expires():
    text = sign_ticket(TICKET, "secret")
    assert re.fullmatch(TICKET_PATTERN, text)
    assert read_ticket(text, "secret", now_s=2000.0) == TICKET
    with pytest.raises(InputError, match=r"the ticket expired 0.5 hours ago"):
        read_ticket(text, "secret", now_s=3800.0)


def test_text_that_is_no_ticket_is_refused(subtests):
    for text in ["", "x", ".", "a.b.c", "YQ.YQ", "\xe9.YQ", "~.~"]:
        with subtests.test(text=text), pytest.raises(InputError):
            read_ticket(text, "secret", now_s=0.0)


def test_a_changed_ticket_and_that_of_another_store_are_refused():
    text = sign_ticket(TICKET, "secret")
    payload, _, signature = text.partition(".")
    other = sign_ticket(replace(TICKET, rollout="s"), "secret").partition(".")[0]
    for wrong in (f"{other}.{signature}", f"{payload}.{signature[:-4]}AAAA", sign_ticket(TICKET, "others")):
        with pytest.raises(InputError, match="not issued by this store"):
            read_ticket(wrong, "secret", now_s=0.0)


def test_the_longest_names_fit_and_stay_distinct():
    names = ["\N{WAVING HAND SIGN}" * 299 + end for end in "ab"]
    assert shorten_name(names[0]) != shorten_name(names[1])
    long = replace(
        TICKET,
        job=shorten_name(names[0]),
        cluster=shorten_name("c" * 200),
        model=shorten_name("m" * 200),
        recommendation="r" * 64,
        rollout="0" * 12,
        running=(0, 1, 2, 3),
        nccl_version="100.100.100",
        nodes=10**6,
        gpus_per_node=10**6,
    )
    text = sign_ticket(long, "secret")
    assert re.fullmatch(TICKET_PATTERN, text)
    found = read_ticket(text, "secret", now_s=0.0)
    found.require_job(names[0])
    for other in (names[1], "Slurm job 7"):
        with pytest.raises(InputError, match="another job's"):
            found.require_job(other)


def test_steps_must_fit_into_the_time_since_the_start():
    TICKET.require_time_for(steps=20, step_us=2e5, now_s=1004.25)
    with pytest.raises(InputError, match=r"20 steps of 200 ms take 4 s, and the job started 3.9 s ago"):
        TICKET.require_time_for(steps=20, step_us=2e5, now_s=1004.15)


def test_a_job_without_a_name_gets_no_ticket():
    assert is_job_name("named a")
    assert not any(is_job_name(name) for name in ("", "  ", "a\nb", "x" * 301, "\udc80"))
